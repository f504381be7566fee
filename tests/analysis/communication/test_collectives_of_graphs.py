# SPDX-License-Identifier: Apache-2.0
"""Collectives that a CUDA graph launched: no trace tells their process groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trace_builder import GEMM, NCCL, TraceBuilder

from megatron import torch_trace
from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.report import sentences

MS = 1_000_000
NOTE = (
    "CUDA graphs launched 2 communication kernels of rank 0 whose process groups no trace tells. "
    "They are not matched over ranks: which rank comes last in them, and how much of them is "
    "waiting, is unknown. A window that begins before the graphs are captured would tell it of the "
    "iterations before (--torch-profile-iterations 1-6)."
)


def group(name: str, ranks: list[int]) -> dict[str, Any]:
    return {"pg_name": name, "pg_desc": "", "pg_size": len(ranks), "ranks": ranks}


def replays(folder: Path, groups: dict[int, list[dict[str, Any]]], *, told: bool = False) -> None:
    """Two ranks that replay one graph in each of two steps; rank 1 comes 2 ms late to its call.

    Args:
        folder: for their traces.
        groups: of each rank, as torch lists them.
        told: another call, which no graph launched, has its group.
    """
    for rank in (0, 1):
        trace = TraceBuilder(rank, 2, groups=groups.get(rank))
        for step in (6, 7):
            now = 100 * MS * step
            trace.step(step, now, now + 100 * MS)
            trace.call("cudaGraphLaunch", now + 10, now + 20, args={"correlation": step})
            of_graph = {"correlation": step}
            trace.gpu(GEMM, now + MS, now + (40 + 2 * rank) * MS, args=of_graph)
            trace.gpu(NCCL, now + (40 + 2 * rank) * MS, now + 60 * MS, args=of_graph)
            if told:
                trace.collective(now + 80 * MS, now + 81 * MS, dimension="default", seq=step)
        trace.write(folder / f"rank-{rank}.json")


def of_graphs(analysis: Analysis) -> list[tuple[str, str, int | None]]:
    return [
        (row.dimension, row.group, row.wait_ns)
        for rank in analysis.ranks
        for row in rank.communication
        if row.dimension == "unknown"
    ]


def test_they_are_not_matched_and_the_report_says_why_and_what_would_tell(tmp_path: Path) -> None:
    replays(tmp_path, {})
    analysis = torch_trace.analyze(tmp_path)
    assert of_graphs(analysis) == [("unknown", "in a CUDA graph", None)] * 2
    assert NOTE in sentences.notes(analysis)
    assert [one.title for one in analysis.findings if one.code == "straggler"] == []
    (exposed,) = (one for one in analysis.findings if one.code.startswith("exposed_comm"))
    assert exposed.title.startswith(
        "Communication that CUDA graphs launched, of unknown process groups, is exposed for"
    )
    assert exposed.advice == (
        "Record a window that begins before the graphs are captured (`--torch-profile-iterations "
        "1-6`) or a run without graphs: what a graph launches has no process group in a trace, so "
        "it is not known what to overlap."
    )


def test_calls_that_tell_their_group_do_not_change_that(tmp_path: Path) -> None:
    replays(tmp_path, {}, told=True)
    analysis = torch_trace.analyze(tmp_path)
    assert of_graphs(analysis) == [("unknown", "in a CUDA graph", None)] * 2
    assert NOTE in sentences.notes(analysis)


def test_where_all_groups_of_a_rank_have_the_same_ranks_these_take_part(tmp_path: Path) -> None:
    mine = [group("0", [0, 1]), group("1", [0, 1])]
    replays(tmp_path, {0: [*mine, group("2", [0])], 1: [*mine, group("3", [1])]}, told=True)
    analysis = torch_trace.analyze(tmp_path)
    assert of_graphs(analysis) == [
        ("unknown", "in a CUDA graph", 4 * MS),
        ("unknown", "in a CUDA graph", 0),
    ]
    assert NOTE not in sentences.notes(analysis)


def test_groups_with_other_ranks_leave_open_who_takes_part(tmp_path: Path) -> None:
    mine = [group("0", [0, 1, 2, 3]), group("1", [0, 1])]
    replays(tmp_path, {0: mine, 1: mine}, told=True)
    analysis = torch_trace.analyze(tmp_path)
    assert of_graphs(analysis) == [("unknown", "in a CUDA graph", None)] * 2


def test_of_one_rank_alone_nothing_is_matched_anyway(tmp_path: Path) -> None:
    replays(tmp_path, {})
    notes = sentences.notes(torch_trace.analyze(tmp_path / "rank-0.json"))
    assert not [one for one in notes if one.startswith("CUDA graphs launched")]
