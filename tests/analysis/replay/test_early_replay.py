# SPDX-License-Identifier: Apache-2.0
"""A replay that was begun while its traces were analysed is the one that would be made later."""

from __future__ import annotations

from pathlib import Path

import pytest
from machine import Machine, cpu, run, sync
from trace_builder import GEMM, TraceBuilder

from megatron import torch_trace
from megatron.torch_trace.analysis.replay import early_replay
from megatron.torch_trace.analysis.replay.early_replay import EarlyReplay
from megatron.torch_trace.analysis.replay.kernels.longest_path import CyclicGraphError
from megatron.torch_trace.analysis.replay.recorded_ranks import read_ranks
from megatron.torch_trace.analysis.replay.replay import Replay
from megatron.torch_trace.analysis.timeline.activity import read_activity
from megatron.torch_trace.analysis.timeline.timeline import Timeline, timeline_of

PROGRAM = [act for _ in range(4) for act in (cpu(40_000), run("gemm", 30_000), sync())]


class Made:
    """The timelines that replays were made of, in their order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of: list[dict[int, Timeline]] = []

        def replay(timelines: dict[int, Timeline]) -> Replay:
            self.of.append(timelines)
            return Replay(timelines)

        monkeypatch.setattr(early_replay, "Replay", replay)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    return Made(monkeypatch)


def read(path: Path) -> tuple[dict[Path, Timeline], dict[int, Timeline]]:
    """Timelines by file, and by rank."""
    by_rank = read_ranks([path])
    return {one.activity.path: one for one in by_rank.values()}, by_rank


def two_ranks(folder: Path) -> tuple[dict[Path, Timeline], dict[int, Timeline]]:
    Machine({0: PROGRAM, 1: PROGRAM}).record(folder)
    return read(folder)


def test_what_was_begun_is_not_made_again(made: Made, tmp_path: Path) -> None:
    by_file, by_rank = two_ranks(tmp_path)
    early = EarlyReplay()
    early.begin(by_file)
    replay = early.of(by_rank)
    assert made.of == [by_rank]
    assert (replay.ranks, replay.recorded_ns) == ((0, 1), Replay(by_rank).recorded_ns)


def test_other_ranks_than_were_begun_are_replayed_themselves(made: Made, tmp_path: Path) -> None:
    by_file, by_rank = two_ranks(tmp_path)
    early = EarlyReplay()
    early.begin(by_file)
    assert early.of({1: by_rank[1]}).ranks == (1,)
    assert made.of == [by_rank, {1: by_rank[1]}]


def test_without_a_beginning_it_is_made_when_it_is_asked_for(made: Made, tmp_path: Path) -> None:
    _, by_rank = two_ranks(tmp_path)
    assert EarlyReplay().of(by_rank).ranks == (0, 1)
    assert made.of == [by_rank]


@pytest.mark.parametrize(
    "trace",
    [
        TraceBuilder(None, 1).step(5, 0, 100_000).gpu(GEMM, 20_000, 90_000, launch=2_000),
        TraceBuilder(0, 1).gpu(GEMM, 20_000, 90_000, launch=2_000),
    ],
    ids=["no rank", "no step"],
)
def test_what_cannot_be_replayed_for_sure_is_not_begun(
    trace: TraceBuilder, made: Made, tmp_path: Path
) -> None:
    path = trace.write(tmp_path / "a.json")
    EarlyReplay().begin({path: timeline(path)})
    assert made.of == []


def timeline(path: Path) -> Timeline:
    found = timeline_of(read_activity(path))
    assert found is not None
    return found


def test_what_goes_wrong_early_is_raised_when_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def circle(timelines: object) -> Replay:
        raise CyclicGraphError

    monkeypatch.setattr(early_replay, "Replay", circle)
    by_file, by_rank = two_ranks(tmp_path)
    early = EarlyReplay()
    early.begin(by_file)
    with pytest.raises(CyclicGraphError):
        early.of(by_rank)


def test_the_analysis_is_the_same_on_one_core_and_on_two(made: Made, tmp_path: Path) -> None:
    slow = [act for _ in range(4) for act in (cpu(90_000), run("gemm", 30_000), sync())]
    Machine({0: PROGRAM, 1: slow}).record(tmp_path)
    alone = torch_trace.analyze(tmp_path, gains=True, jobs=1)
    assert len(made.of) == 1
    assert torch_trace.analyze(tmp_path, gains=True, jobs=2) == alone
    assert [sorted(one) for one in made.of] == [[0, 1]] * 2
