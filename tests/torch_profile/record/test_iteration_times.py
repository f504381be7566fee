# SPDX-License-Identifier: Apache-2.0
"""Iterations without the profiler are timed beside each window, and told with its trace."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from recordings import end, make, train
from recordings import signals as signals
from trace_builder import read

from megatron.torch_profile.plan.schedule import Window
from megatron.torch_profile.record import cupti, iteration_times
from megatron.torch_profile.record.iteration_times import IterationTimes
from megatron.torch_profile.record.recorder import Recorder

MS = 1_000_000
WARMS_UP, RECORDS = SimpleNamespace(recorded=[]), SimpleNamespace(recorded=[12])


class Training:
    """Iterations of whatever length one wants, under the times of a recorder that is told."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0
        monkeypatch.setattr(iteration_times.time, "perf_counter_ns", lambda: self.now)
        self.others, self.exporter = SimpleNamespace(running=False), SimpleNamespace(at_work=False)
        recorder = make(folder)
        plan = recorder._plan
        recorder.close()
        self.times = IterationTimes(plan, self.others, self.exporter)  # type: ignore[arg-type]
        self.times.begin_step(1, None)
        self.iteration = 1

    def run(self, *lengths_ms: float, window: Any = None) -> None:
        for length in lengths_ms:
            self.now += round(length * MS)
            self.iteration += 1
            self.times.begin_step(self.iteration, window)

    def window(self, recorded_ms: float = 693) -> list[list[int]]:
        """A warm-up iteration and a recorded one; the profiler stops in the one after."""
        before = self.times.window_opens().get("undisturbed_iterations", [])
        self.run(655, window=WARMS_UP)
        first = self.iteration
        self.run(recorded_ms, window=RECORDS)
        self.times.window_closed(Window(first, first, 1))
        return before


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Training:
    return Training(tmp_path, monkeypatch)


def written(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob("iter-*/artifacts/rank-0.iterations.json")
    told: dict[str, Any] = json.loads(path.read_text())
    return told


def test_ten_on_each_side_are_told_and_the_log_says_how_much_the_profiler_slowed_it(
    training: Training, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training.run(9000, *[600] * 3, *[585] * 10)
    before = training.window()
    training.run(2000, *[585] * 9, 620)
    training.times.close()
    assert before == [[n, 585 * MS] for n in range(5, 15)], "not the first, which compiles"
    assert written(tmp_path) == {
        "schema": 1,
        "run": tmp_path.name,
        "rank": 0,
        "window": {"first": 16, "last": 16},
        "warm_up": [[15, 655 * MS]],
        "start_ns": 0,
        "recorded": [[16, 693 * MS]],
        "following": [[17, 2000 * MS]],
        "undisturbed": [
            *before,
            *([n, 585 * MS] for n in range(18, 27)),
            [27, 620 * MS],
        ],
    }
    assert (
        "[torch-profile iteration-times] rank 0, iteration 16: recorded iteration 693 ms; "
        "undisturbed 585 ms (median of 20): the profiler slowed it by 18 % (mean 585 ms "
        "before the window, 588 ms after it)\n"
    ) in capsys.readouterr().out


def test_the_recorded_iteration_begins_when_the_profiler_has_been_started(
    training: Training, tmp_path: Path
) -> None:
    training.run(9000, *[100] * 6)
    training.times.window_opens()
    training.run(110, window=WARMS_UP)
    training.now += 40 * MS
    training.times.window_starts(training.iteration)
    training.run(105, window=RECORDS)
    training.times.window_closed(Window(9, 9, 1))
    training.run(*[100] * 3)
    training.times.close()
    told = written(tmp_path)
    assert (told["start_ns"], told["recorded"]) == (40 * MS, [[9, 105 * MS]])


def test_evaluation_checkpoints_and_another_profiler_s_iterations_are_left_out(
    training: Training,
) -> None:
    training.run(9000, 100)
    training.others.running = True
    training.run(300)
    training.others.running = False
    training.run(101)
    training.now += 50 * MS
    training.times.pause(None)  # type: ignore[arg-type]
    training.now += 60_000 * MS
    training.iteration += 1
    training.times.begin_step(training.iteration, None)
    training.run(102)
    assert [ns // MS for _, ns in training.window()] == [100, 101, 102]


def test_a_recorded_iteration_ends_where_the_evaluation_behind_it_begins(
    training: Training, tmp_path: Path
) -> None:
    training.run(9000, *[100] * 5)
    training.times.window_opens()
    training.run(110, window=WARMS_UP)
    training.now += 120 * MS
    training.times.pause(RECORDS)  # type: ignore[arg-type]
    training.times.window_closed(Window(7, 7, 1))
    training.now += 5000 * MS
    training.iteration += 1
    training.times.begin_step(training.iteration, None)
    training.run(100, 100)
    training.times.close()
    assert written(tmp_path)["recorded"] == [[8, 120 * MS]]


def test_iterations_while_the_trace_is_being_written_count_only_where_there_are_no_others(
    training: Training, tmp_path: Path
) -> None:
    training.run(9000)
    training.window()
    training.exporter.at_work = True
    training.run(2000, *[700] * 3)
    training.exporter.at_work = False
    training.run(*[585] * 3)
    training.times.close()
    assert [ns // MS for _, ns in written(tmp_path)["undisturbed"]] == [700] * 3 + [585] * 3


def test_iterations_while_the_trace_is_being_written_do_not_count_where_there_are_others(
    training: Training, tmp_path: Path
) -> None:
    training.run(9000, *[585] * 5)
    training.window()
    training.exporter.at_work = True
    training.run(2000, *[700] * 30)
    training.exporter.at_work = False
    training.run(586, 587)
    training.times.close()
    assert [ns // MS for _, ns in written(tmp_path)["undisturbed"]] == [585] * 5 + [587]


def test_between_windows_with_cupti_attached_no_iteration_is_undisturbed(
    training: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training.run(9000, *[100] * 5)
    monkeypatch.setattr(cupti, "stays_attached", lambda activities, given: True)
    training.window()
    training.run(500, 120, 120)
    monkeypatch.setattr(cupti, "stays_attached", lambda activities, given: False)
    assert [ns // MS for _, ns in training.window()] == [100] * 5
    training.run(500, 101)
    training.times.close()
    told = written(tmp_path)
    assert (told["window"], told["undisturbed"][-1]) == ({"first": 13, "last": 13}, [15, 101 * MS])


@pytest.mark.parametrize(
    ("activities", "teardown", "attached"),
    [(("cpu", "cuda"), "1", False), (("cpu", "cuda"), "0", True), (("cpu",), "0", False)],
)
def test_cupti_stays_attached_where_it_is_not_torn_down(
    activities: tuple[str, ...], teardown: str, attached: bool
) -> None:
    given = {"TEARDOWN_CUPTI": teardown}
    cupti.prepare("12.8", cuda_graphs=False, given=dict(given))
    assert cupti.stays_attached(activities, given) is attached


def test_too_few_are_said_and_no_file_tells_them(
    training: Training, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training.run(9000, 100)
    training.window(150)
    training.run(500, 100)
    training.times.close()
    assert not list(tmp_path.iterdir())
    assert (
        "rank 0, iteration 4: recorded iteration 150 ms; undisturbed unknown: fewer than 5 ran "
        "near the window without the profiler\n"
    ) in capsys.readouterr().out


def test_a_file_that_is_there_stays_and_the_log_says_so(
    training: Training, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "iter-0000003" / "artifacts" / "rank-0.iterations.json"
    there.parent.mkdir(parents=True)
    there.write_text("mine\n")
    training.run(9000)
    training.window()
    training.run(500, *[100] * 5)
    training.times.close()
    assert there.read_text() == "mine\n"
    assert f"{there} was not written: File exists" in capsys.readouterr().out


def test_times_remember_no_more_than_they_tell(training: Training) -> None:
    training.run(*[1] * 1000)
    training.window()
    training.exporter.at_work = True
    training.run(*[1] * 1000)
    around = training.times._around
    assert around is not None
    assert len(training.times._recent) + len(around.busy) + len(around.after) == 20


def test_a_recorder_tells_them_in_the_trace_and_beside_it(tmp_path: Path) -> None:
    recorder: Recorder = make(tmp_path, last=30, skip_first=8)
    train(recorder, range(1, 13))
    recorder.exporter.wait()
    train(recorder, range(13, 31))
    end(recorder)
    own = read(tmp_path / "iter-0000010" / "rank-0.pt.trace.json.gz")["torch_profile"]
    told = written(tmp_path)
    assert [n for n, _ in own["undisturbed_iterations"]] == list(range(2, 9))
    assert told["undisturbed"][:7] == own["undisturbed_iterations"]
    assert all(n > 12 for n, _ in told["undisturbed"][7:])
    assert [n for n, _ in told["recorded"]] == [10]
