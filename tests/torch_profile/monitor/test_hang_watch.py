# SPDX-License-Identifier: Apache-2.0
"""When a rank writes down that it hangs, and what, with a clock of the test's own."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from megatron.torch_profile.config import TorchProfileConfig
from megatron.torch_profile.guard import Guard
from megatron.torch_profile.hooks.flight_recorder import switch_on
from megatron.torch_profile.log import Slug
from megatron.torch_profile.monitor.hangs import hang_watch
from megatron.torch_profile.monitor.hangs.hang_watch import HangWatch
from megatron.torch_profile.monitor.hangs.locked_stacks import LockedStacks
from megatron.torch_profile.monitor.hangs.stacks import module_paths
from megatron.torch_profile.monitor.heartbeat import Heartbeat
from megatron.torch_profile.plan.ranks import Layout
from megatron.torch_profile.plan.topology import CPU, Member, Topology
from megatron.torch_profile.plan.training_loop import Models
from megatron.torch_profile.spans.model_parts import model_parts
from megatron.torch_profile.spans.window_spans import Spans, open_spans

SECOND = 1_000_000_000


class Rank:
    def __init__(self, folder: Path, model: Any = None) -> None:
        self.folder = folder
        self.heartbeat = Heartbeat()
        members = [Member(number, "node0", 7, number, CPU) for number in range(12)]
        topology = Topology(3, Layout(12, {}), members)
        self.watch = HangWatch(10.0, folder, topology, self.heartbeat, model, open_spans)

    def look_after(self, seconds: float) -> list[str]:
        self.watch.look(self.heartbeat.since_ns + int(seconds * SECOND))
        return sorted(path.name for path in self.folder.glob("hangs/*"))


def test_a_rank_writes_once_for_each_hang_and_never_over_an_earlier_record(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    rank.heartbeat.begin_step(4)
    first, second = "rank-03.iter-0000004.hang.json", "rank-03.iter-0000004-2.hang.json"
    assert rank.look_after(9) == []
    assert rank.look_after(11) == [first]
    before = (tmp_path / "hangs" / first).read_text()
    assert rank.look_after(100) == [first]
    rank.heartbeat.begin_step(4)  # training has started again in the same process
    assert rank.look_after(11) == [second, first]
    assert (tmp_path / "hangs" / first).read_text() == before


def test_evaluation_and_checkpoints_are_no_hang(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    rank.heartbeat.begin_step(4)
    rank.heartbeat.begin_pause("evaluation")
    assert rank.look_after(100) == []
    rank.heartbeat.end_pause()
    assert rank.look_after(9) == []
    assert rank.look_after(11) == ["rank-03.iter-0000004.hang.json"]


def test_before_the_watchdog_ends_the_process_there_is_a_record_in_evaluation_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pending = 0.0
    monkeypatch.setattr(hang_watch, "watchdog_seconds", lambda: 5.0)
    monkeypatch.setattr(hang_watch, "pending_seconds", lambda device: pending)
    rank = Rank(tmp_path)
    rank.heartbeat.begin_step(4)
    rank.heartbeat.begin_pause("evaluation")
    began = rank.heartbeat.paused_ns
    rank.watch.look(began + 6 * SECOND)
    assert not [*tmp_path.glob("hangs/*")], "it only takes long"
    pending = 5.5
    rank.watch.look(began + 4 * SECOND)
    assert not [*tmp_path.glob("hangs/*")]
    rank.watch.look(began + 7 * SECOND)
    rank.watch.look(began + 8 * SECOND)
    assert [one.name for one in tmp_path.glob("hangs/*")] == ["rank-03.iter-0000004.hang.json"]
    assert "rank 3: no evaluation has ended for 7 s (iteration 4)" in capsys.readouterr().out
    rank.heartbeat.end_pause()
    rank.heartbeat.begin_step(5)
    assert len(rank.look_after(6)) == 2, "in an iteration as well, whatever the flag says"


def test_of_several_models_modules_have_the_names_that_a_trace_has() -> None:
    shared = torch.nn.Tanh()
    models = Models({name: [torch.nn.Sequential(shared)] for name in ("actor", "critic")})
    assert list(module_paths(models).values()) == [
        "actor: Sequential",
        "actor.0: Tanh",
        "critic: Sequential",
    ]
    assert list(module_paths(models).values()) == [part.name for part in model_parts(models, None)]


def test_a_record_tells_threads_modules_spans_and_the_last_line_of_the_log(tmp_path: Path) -> None:
    record: dict[str, Any] = {}

    class Slow(torch.nn.Module):
        def forward(self, tensor: torch.Tensor) -> torch.Tensor:
            # Another thread looks while this one is in here.
            looks = threading.Thread(target=rank.look_after, args=(11,), name="that looks")
            looks.start()
            looks.join()
            return tensor

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), Slow())
    rank = Rank(tmp_path, [model])
    rank.heartbeat.begin_step(87)
    rank.heartbeat.log(86)
    spans = Spans(TorchProfileConfig(spans=["modules"]), [model])
    model(torch.ones(1, 2))
    spans.close()
    record = json.loads((tmp_path / "hangs" / "rank-03.iter-0000087.hang.json").read_text())
    assert record["modules"] == ["model: Sequential", "1: Slow"]
    assert record["spans"] == ["model: Sequential", "1: Slow"]
    assert open_spans() == ()
    assert (record["iteration"], record["logged_iteration"]) == (87, 86)
    trains = record["threads"][0]
    assert trains["trains"]
    assert any(frame.endswith(" forward") for frame in trains["stack"])
    assert "that looks" not in [one["name"] for one in record["threads"]]


def test_what_we_wrap_is_where_it_was(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    rank.heartbeat.begin_step(4)

    def looks() -> None:
        other = threading.Thread(target=rank.look_after, args=(11,))
        other.start()
        other.join()

    Guard(Slug.HANG, "nothing")(looks)
    record = json.loads((tmp_path / "hangs" / "rank-03.iter-0000004.hang.json").read_text())
    stack = record["threads"][0]["stack"]
    assert any(frame.endswith(" looks") for frame in stack)
    assert not [frame for frame in stack if "torch_profile/guard.py" in frame]


def test_a_folder_that_takes_no_record_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hangs").write_text("a file")
    rank = Rank(tmp_path)
    rank.heartbeat.begin_step(4)
    rank.watch.look(rank.heartbeat.since_ns + 11 * SECOND)
    rank.watch.look(rank.heartbeat.since_ns + 12 * SECOND)
    (line,) = capsys.readouterr().out.splitlines()
    assert line == "[torch-profile hang] warning: rank 3 left no hang record: File exists"


@pytest.mark.parametrize(
    ("version", "given", "expected"),
    [
        ("2.11.0+cu129", {}, {"TORCH_FR_BUFFER_SIZE": "2000"}),
        ("2.4.1", {}, {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}),
        ("2.11.0", {"TORCH_FR_BUFFER_SIZE": "0"}, {"TORCH_FR_BUFFER_SIZE": "0"}),
        ("main", {"TORCH_NCCL_TRACE_BUFFER_SIZE": "9"}, {"TORCH_NCCL_TRACE_BUFFER_SIZE": "9"}),
    ],
)
def test_torchs_flight_recorder_is_switched_on_unless_the_user_has_set_it(
    version: str, given: dict[str, str], expected: dict[str, str]
) -> None:
    switch_on(version, given)
    assert given == expected


def test_a_fork_ends_as_it_would_and_its_parent_is_watched_on(tmp_path: Path) -> None:
    script = [sys.executable, "-W", "ignore", "-c", FORK, str(tmp_path / "stacks")]
    ended = subprocess.run(script, capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("child ended with 3\nits parent's file is empty\n", "")
    assert "Timeout (0:00:01)!" in (tmp_path / "stacks").read_text()


FORK = """
import os, signal, sys, time
from pathlib import Path
from megatron.torch_profile.monitor.hangs.locked_stacks import LockedStacks

path = Path(sys.argv[1])
stacks = LockedStacks(path, 60.0, 0)
stacks.renew()
if not (child := os.fork()):
    signal.alarm(60)
    stacks.stop()
    sys.exit(3)  # Python would wait for faulthandler's thread, which a fork has not
print("child ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print("its parent's file is", path.read_text() or "empty")
stacks._limit = 1.0
if not (child := os.fork()):
    os._exit(0)
os.waitpid(child, 0)
while not path.stat().st_size:
    time.sleep(0.01)
os._exit(0)
"""


def test_the_log_names_the_iteration_of_the_record_though_training_goes_on_meanwhile(
    tmp_path: Path, warned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = Rank(tmp_path)
    rank.heartbeat.begin_step(4)
    place = HangWatch._place

    def goes_on(watch: HangWatch, record: Any) -> Path:
        rank.heartbeat.begin_step(5)
        return place(watch, record)

    monkeypatch.setattr(HangWatch, "_place", goes_on)
    rank.look_after(11)
    (line,) = warned
    assert "(iteration 4): rank-03.iter-0000004.hang.json" in line


def test_stacks_that_were_written_just_before_training_ends_are_told(
    tmp_path: Path, warned: list[str]
) -> None:
    path = tmp_path / "hangs" / "rank-0.lock.txt"
    stacks = LockedStacks(path, 60.0, 0)
    stacks.renew()
    path.write_text("Thread 0x1 (most recent call first):")
    stacks.stop()
    assert warned == [
        "rank 0: a thread kept Python's lock for more than 60 s, or the process was stopped: "
        f"{path} has the stacks"
    ]
    assert path.exists()
