# SPDX-License-Identifier: Apache-2.0
"""What the thread of the training loop did, by path: of few ranks a tree and its figure."""

from __future__ import annotations

from collections.abc import Iterator

from megatron.torch_trace.analysis.results.analysis import Analysis, RankResult
from megatron.torch_trace.report.figures.icicle import IcicleFigure
from megatron.torch_trace.report.figures.loop_icicle import KINDS, loop_icicle
from megatron.torch_trace.report.figures.loop_nodes import BETWEEN, LoopNode, loop_tree
from megatron.torch_trace.report.per_iteration import steps_by_rank
from megatron.torch_trace.report.stages import first_and_last
from megatron.torch_trace.report.tables import (
    Cell,
    Column,
    Medium,
    Row,
    Table,
    amount,
    at,
    ms,
    share,
    some_ms,
    text,
)
from megatron.torch_trace.wording import NONE, counted

_LATE = "straggler"


def tables(analysis: Analysis) -> list[Table]:
    """A tree for each rank that is shown."""
    return [_tree(rank, name) for rank, name in _shown(analysis)]


def figures(analysis: Analysis) -> list[IcicleFigure]:
    """An icicle for each rank that is shown."""
    steps = steps_by_rank(analysis)
    drawn = [loop_icicle(rank, name, steps[rank.rank]) for rank, name in _shown(analysis)]
    return [one for one in drawn if one]


def _shown(analysis: Analysis) -> list[tuple[RankResult, str]]:
    """The first and the last stage, and the worst straggler, with what they are called."""
    late = next((one.evidence["rank"] for one in analysis.findings if one.code == _LATE), None)
    stages = first_and_last(analysis, lambda rank: rank.host.loop_paths)
    found = {rank.rank: rank for rank in stages}
    found |= {rank.rank: rank for rank in analysis.ranks if rank.rank == late}
    return [
        (rank, ", ".join(_words(rank, of_stage=len(stages) > 1, is_late=rank.rank == late)))
        for rank in found.values()
        if rank.host.loop_paths
    ]


def _words(rank: RankResult, *, of_stage: bool, is_late: bool) -> Iterator[str]:
    yield rank.name
    if of_stage and "pp" in rank.coordinates:
        yield f"stage {rank.coordinates['pp']}"
    if is_late:
        yield "the straggler"


def _tree(rank: RankResult, name: str) -> Table:
    thread = loop_tree(rank.host.loop_paths)
    assert thread is not None
    whole = thread.time_ns
    columns = (
        Column("path", number=False, cut=True),
        Column("kind", number=False),
        Column("calls", sums="count"),
        Column("total ms", hint="with all that lies in it", sums="ms"),
        Column("own ms", hint="in nothing that is recorded in it", sums="ms"),
        Column("share", hint="of the thread's time"),
    )
    rows = [row for node in thread.children for row in _rows(rank.rank, node, whole)]
    rows += _others(thread, whole)
    if thread.self_ns:
        cells = (Cell("(nothing recorded)"), Cell(""), Cell(""))
        times = (ms(thread.self_ns), Cell(NONE), share(thread.self_ns / whole))
        rows.append(Row((*cells, *times), level=1))
    return Table(
        f"thread-{rank.rank}",
        f"{name[0].upper()}{name[1:]}: time of the training loop's thread by path",
        columns,
        tuple(rows),
        media=Medium.WRITTEN,
        rank=rank.rank,
    )


def _rows(rank: int, node: LoopNode, whole: int) -> Iterator[Row]:
    innermost = node.innermost
    cells = (
        text(node.name, BETWEEN.join(path.name for path in node.paths)),
        Cell(KINDS[innermost.kind]),
        amount(innermost.calls),
        ms(node.time_ns),
        some_ms(node.self_ns),
        share(node.time_ns / whole),
    )
    yield Row(cells, at(rank, innermost.longest), level=node.level)
    for child in node.children:
        yield from _rows(rank, child, whole)
    yield from _others(node, whole)


def _others(node: LoopNode, whole: int) -> Iterator[Row]:
    """What lies in a node and has no row."""
    if node.others:
        times = (ms(node.others_ns), Cell(NONE), share(node.others_ns / whole))
        named = (Cell(f"({counted(node.others, 'shorter path')})"), Cell(""), Cell(""))
        yield Row((*named, *times), level=node.level + 1)
