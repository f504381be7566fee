# SPDX-License-Identifier: Apache-2.0
"""Requests on rank 0 and on another rank, in one process, with a clock of the test's own."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recordings import signals  # noqa: F401  (a fixture)

from megatron.torch_profile.config import TorchProfileConfig
from megatron.torch_profile.monitor.agreement import Agreed, Pace, placed
from megatron.torch_profile.monitor.channel import OneProcess
from megatron.torch_profile.monitor.desk import SIGNALS, Desk
from megatron.torch_profile.monitor.requested_steps import RequestedSteps
from megatron.torch_profile.plan.capture_plan import CapturePlan
from megatron.torch_profile.plan.ranks import Layout
from megatron.torch_profile.plan.schedule import Schedule, Span, Window
from megatron.torch_profile.plan.topology import CPU, Member, Topology
from megatron.torch_profile.record.recorder import Recorder
from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.format.requests import Request

LAST = 1000


def plan_of(folder: Path, rank: int = 0, **flags: Any) -> CapturePlan:
    config = TorchProfileConfig(enabled=True, trigger=["file", "signal"], **flags)
    members = [Member(number, "node0", 1, number, CPU) for number in (0, 1)]
    topology = Topology(rank, Layout(2, {}), members)
    return CapturePlan(config, topology, (0,), Schedule(config, Span(1, LAST)), folder)


class Rank0:
    """A desk whose iterations take a second each."""

    def __init__(self, folder: Path, channel: OneProcess | None = None, **flags: Any) -> None:
        self.folder, self.channel = folder, channel or OneProcess()
        self.time = 0.0
        plan = plan_of(folder, **({"iterations": ["900"]} | flags))
        self.desk = Desk(plan, self.channel, lambda: self.time)

    def ask(self, name: str, content: str | bytes) -> None:
        text = content if isinstance(content, bytes) else content.encode()
        (self.folder / "requests" / f"{name}.json").write_bytes(text)

    def look(self, progress: int, *, closed: bool = False) -> None:
        self.time = float(progress)
        self.desk.look(progress, closed=closed)

    def answer(self, name: str) -> tuple[str, str] | None:
        path = self.folder / "requests" / f"{name}.answer.json"
        if not path.exists():
            return None
        fields = json.loads(path.read_text())
        return fields["state"], fields["says"]

    def tell(self, number: int, **outcomes: str) -> None:
        for rank, outcome in outcomes.items():
            self.channel.set(f"told/{number}/{rank[1:]}", outcome)
            self.channel.add(f"told/{number}", 1)


def test_a_request_is_accepted_ten_seconds_ahead_and_done_when_all_ranks_have_told(
    tmp_path: Path,
) -> None:
    rank_0 = Rank0(tmp_path)
    rank_0.ask("a", '{"iterations": 2, "ranks": ["all"]}')
    rank_0.look(1)
    assert rank_0.answer("a") is None  # no iteration has been timed
    rank_0.look(2)
    assert rank_0.answer("a") == ("accepted", "records iterations 14-15 on ranks 0-1.")
    rank_0.tell(0, r0="recorded")
    rank_0.look(16)
    assert rank_0.answer("a") == ("accepted", "records iterations 14-15 on ranks 0-1.")
    rank_0.tell(0, r1="late")
    rank_0.look(17)
    assert rank_0.answer("a") == (
        "done",
        "recorded iterations 14-15 on rank 0; rank 1 learned of it too late.",
    )


def test_two_requests_at_once_and_a_planned_window_wait_for_each_other(tmp_path: Path) -> None:
    rank_0 = Rank0(tmp_path, iterations=["15-16"])
    rank_0.look(1)
    rank_0.look(2)
    rank_0.ask("a", "{}")
    rank_0.ask("b", "{}")
    rank_0.look(3)
    assert [rank_0.answer(name) for name in "ab"] == [
        ("accepted", "records iteration 18 on rank 0, after the window of iterations 15-16."),
        ("accepted", "records iteration 20 on rank 0, after the window of iteration 18."),
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"iterations": 0}', "--iterations 0: must be 1 or more."),
        ('{"iterations": true}', "--iterations true: must be 1 or more."),
        ('{"iteration": 1}', "iteration: no such field; did you mean iterations?"),
        ('{"spans": ["phase"]}', "--spans phase: did you mean phases?"),
        ('{"ranks": ["7"]}', "--ranks 7: ranks must be 0 to 1 (world size 2)."),
        ('{"ranks": 7}', '--ranks 7: must be a list of words such as ["0"].'),
        ('{"with_stack": 1}', "--with-stack 1: must be true or false."),
        ('{"schema": 2}', "schema 2: must be 1."),
        ('{"iterations": 2', "the request is no JSON, or only a part of it."),
        ("[" * 60_000, "the request is no JSON, or only a part of it."),
        ("[]", 'the request is no JSON object such as {"schema": 1, "iterations": 2}.'),
        (" " * 70_000, "the request is longer than 65,536 bytes."),
        (
            '{"iterations": 990}',
            "a window begins 10 s after the request or later, so this one would be iterations "
            "14-1003, and training runs iterations 1 to 1000.",
        ),
    ],
)
def test_a_request_that_cannot_be_is_refused_in_one_sentence(
    text: str, says: str, tmp_path: Path
) -> None:
    rank_0 = Rank0(tmp_path, iterations=["1"])
    rank_0.ask("a", text)
    rank_0.look(1)
    rank_0.look(2)
    assert rank_0.answer("a") == ("refused", says)
    assert not rank_0.channel.check(["agreed/0"])


def test_a_window_may_end_with_training(tmp_path: Path) -> None:
    rank_0 = Rank0(tmp_path, iterations=["1"])
    rank_0.ask("a", '{"iterations": 987}')
    rank_0.look(1)
    rank_0.look(2)
    assert rank_0.answer("a") == ("accepted", "records iterations 14-1000 on rank 0.")


def test_a_link_a_pipe_and_a_name_that_is_too_long_are_refused_and_others_go_on(
    tmp_path: Path,
) -> None:
    rank_0 = Rank0(tmp_path)
    folder = tmp_path / "requests"
    (tmp_path / "elsewhere.json").write_text("{}")
    (folder / "link.json").symlink_to(tmp_path / "elsewhere.json")
    os.mkfifo(folder / "pipe.json")
    rank_0.ask("n" * 250, "{}")
    rank_0.ask("ranks", '{"ranks": ["%s"]}' % ("9" * 5000))
    rank_0.ask("z", "{}")
    rank_0.look(1)
    rank_0.look(2)
    states = [rank_0.answer(name) for name in ("link", "pipe", "ranks", "z")]
    assert [state and state[0] for state in states] == ["refused"] * 3 + ["accepted"]
    # Without an answer nothing is executed.
    assert not rank_0.channel.check(["agreed/1"])


def test_what_has_an_answer_is_not_executed_again_by_whoever_looks(tmp_path: Path) -> None:
    first = Rank0(tmp_path)
    first.ask("a", "{}")
    for progress in range(1, 5):
        first.look(progress)
    again = Rank0(tmp_path)
    for progress in range(1, 5):
        again.look(progress)
    assert first.channel.check(["agreed/0"])
    assert not first.channel.check(["agreed/1"])
    assert not again.channel.check(["agreed/0"])


def test_signals_of_many_ranks_are_one_request_until_its_window_is_recorded(
    tmp_path: Path,
) -> None:
    rank_0 = Rank0(tmp_path)
    rank_0.look(1)
    rank_0.channel.add(SIGNALS, 2)
    rank_0.look(2)
    rank_0.channel.add(SIGNALS, 5)
    rank_0.look(3)
    assert rank_0.channel.check(["agreed/0"])
    assert not rank_0.channel.check(["agreed/1"])
    rank_0.tell(0, r0="recorded")
    rank_0.look(20)
    rank_0.channel.add(SIGNALS, 1)
    rank_0.look(21)
    assert rank_0.channel.check(["agreed/1"])


def test_a_request_that_training_does_not_live_to_see_is_answered(tmp_path: Path) -> None:
    rank_0 = Rank0(tmp_path)
    rank_0.look(1)
    rank_0.look(2)
    rank_0.ask("a", "{}")
    rank_0.look(3)
    rank_0.ask("b", "{}")
    rank_0.look(4, closed=True)
    rank_0.desk.end()
    assert rank_0.answer("a") == ("failed", "unknown whether rank 0 recorded it.")
    assert rank_0.answer("b") == ("refused", "training has ended.")


def test_a_rank_records_what_was_agreed_with_its_own_spans_and_is_late_for_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    channel = OneProcess()
    plan = plan_of(tmp_path, rank=1, iterations=["900"])
    recorder = Recorder(plan, [], {"rank": 1})
    steps = RequestedSteps(recorder, plan, channel)
    agreed = Agreed("a", 5, 6, 1, (0, 1), ("phases",), with_stack=False)
    channel.set("agreed/0", agreed.as_text())
    channel.set("agreed/1", Agreed("b", 3, 3, 1, (1,), None, with_stack=False).as_text())
    channel.set("agreed/2", Agreed("c", 7, 7, 1, (0,), None, with_stack=False).as_text())
    steps.begin_step(2)
    steps.look()
    for iteration in range(3, 9):
        steps.begin_step(iteration)
    steps.close()
    recorder.exporter.wait()
    steps.look()
    assert [p.name for p in sorted(tmp_path.glob("iter-*"))] == ["iter-0000005-0000006"]
    assert [channel.get(f"told/{n}/1") for n in (0, 1)] == [b"recorded", b"late"]
    assert not channel.check(["told/2/1"])
    assert "rank 1 learned of request b too late to record iteration 3" in capsys.readouterr().out


def test_training_touches_no_file_between_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(tmp_path, iterations=["900"])
    steps = RequestedSteps(Recorder(plan, [], {"rank": 0}), plan, OneProcess())
    steps.begin_step(1)
    calls: list[str] = []
    for name in ("open", "stat", "scandir", "listdir", "mkdir"):
        monkeypatch.setattr(os, name, lambda *_, name=name, **__: calls.append(name))
    for iteration in range(2, 50):
        steps.begin_step(iteration)
    monkeypatch.undo()
    steps.close()
    assert calls == []


def test_the_pace_is_that_of_the_fastest_iteration_and_a_pause_is_none() -> None:
    pace = Pace()
    for iteration, now in [(0, 0.0), (1, 9.0), (3, 13.0), (4, 113.0)]:
        pace.see(iteration, now)
    assert pace.lead() == 5


def test_the_wait_for_the_first_iteration_is_no_iteration() -> None:
    pace = Pace()
    pace.see(0, 0.0)
    pace.see(1, 0.1)
    assert not pace.known


def test_a_window_lies_in_the_first_gap_that_holds_its_warm_up_too() -> None:
    taken = [Window(10, 12, 2), Window(16, 16, 1), Window(30, 30, 1)]
    assert placed(4, 2, 1, taken, []) == (Window(5, 6, 1), None)
    assert placed(5, 3, 1, taken, []) == (Window(18, 20, 1), taken[1])
    assert placed(5, 1, 1, taken, [Window(14, 14, 1)]) == (Window(6, 6, 1), None)
    assert placed(5, 2, 1, taken, []) == (Window(6, 7, 1), None), "up to the warm-up of the next"
    assert placed(12, 1, 1, taken, []) == (Window(14, 14, 1), taken[0]), "12 is recorded already"


def test_a_request_changes_only_what_it_names() -> None:
    config = TorchProfileConfig(
        enabled=True, spans=["modules"], spans_depth=2, with_modules=True, with_stack=True
    )

    def asked(spans: tuple[str, ...] | None) -> TorchProfileConfig:
        return Agreed("a", 5, 6, 1, (0,), spans, with_stack=False).requested(config).config

    assert asked(None) == config
    assert asked(("modules",)) == replace(config, with_modules=False)
    without_modules = {"spans": ["phases"], "spans_depth": None, "with_modules": False}
    assert asked(("phases",)) == replace(config, **without_modules)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_a_request_or_one_sentence(content: bytes) -> None:
    said = "."
    try:
        Request.parse(content)
    except UsageError as error:
        said = str(error)
    assert said.endswith((".", "?"))


@given(st.data())
def test_every_part_of_a_request_that_is_torn_is_refused(data: st.DataObject) -> None:
    whole = Request(2, ("0-7",), ("phases",), with_stack=True)
    text = whole.as_text().rstrip().encode()
    assert Request.parse(text) == whole
    with pytest.raises(UsageError):
        Request.parse(text[: data.draw(st.integers(0, len(text) - 1))])
