# SPDX-License-Identifier: Apache-2.0
"""Collections of Python's garbage collector: what they cost, and what is said where none ran."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trace_builder import GEMM, TraceBuilder

from megatron.torch_trace.analysis.host.garbage_collections import COLLECTOR, GarbageCollections
from megatron.torch_trace.analysis.host.idle_holders import IdleHolder
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding
from megatron.torch_trace.analysis.run.analyse import analyze

US, MS = 1_000, 1_000_000
OLD, MIDDLE = "garbage collection (generation 2)", "garbage collection (generation 1)"
COUNTS = {"collections": 9, "time_ns": 99 * MS, "longest_ns": 49_500 * US}
ALL_TOLD = {"garbage_collection": {**COUNTS, "unrecorded": 0}}
OTHER_THREAD = 31
FREEZE = "`gc.freeze()` before the training loop makes each collection shorter."
MANUAL = "Collect seldom, and on all ranks in the same iteration, instead of whenever Python does "


def rank_of(
    rank: int, *argv: str, world_size: int = 1, own: dict[str, Any] | None = None
) -> TraceBuilder:
    given = {"argv": ["pretrain_gpt.py", "--micro-batch-size", "1", *argv], **(own or {})}
    return TraceBuilder(rank, world_size, own=given)


def stopped(
    trace: TraceBuilder, *, at: tuple[int, ...], spans: bool = True, tid: int | None = None
) -> TraceBuilder:
    """Four iterations of 100 ms; in some of them nothing is launched for 50 ms."""
    for number in range(4):
        start = 100 * number * MS
        begin = start + (51 if number in at else 1) * MS
        trace.step(number + 3, start, start + 99 * MS)
        if number in at and spans:
            where = {} if tid is None else {"tid": tid}
            trace.annotation(OLD, start + MS // 2, start + 50 * MS, **where)
        trace.gpu(GEMM, begin, begin + 20 * MS, launch=begin - 100 * US)
        trace.collective(begin + 20 * MS, start + 85 * MS, launch=begin, seq=number + 1)
    return trace


def analysed(folder: Path, *traces: TraceBuilder) -> Analysis:
    for rank, one in enumerate(traces):
        one.write(folder / f"rank-{rank}.json")
    return analyze(folder)


def by_code(analysis: Analysis) -> dict[str, Finding]:
    return {finding.code: finding for finding in analysis.findings}


def test_a_rank_that_collects_is_told_how_long_its_gpu_is_idle(tmp_path: Path) -> None:
    analysis = analysed(tmp_path, stopped(rank_of(0, own=ALL_TOLD), at=(1, 3)))
    host = analysis.ranks[0].host
    assert host.collections == GarbageCollections(
        times=2,
        time_ns=99 * MS,
        idle_ns=99 * MS,
        idle_by_step=(0, 49_500 * US, 0, 49_500 * US),
        unrecorded=0,
    )
    assert host.idle_holders[0] == IdleHolder("collection", COLLECTOR, 2, 99 * MS)
    found = by_code(analysis)
    finding = found["garbage_collection"]
    share = 99 / 399
    assert (finding.severity, finding.title, finding.advice) == (
        "high",
        "For 25 % of the window the GPU of rank 0 is idle while Python's garbage collector runs: "
        "2 collections, the longest 49.5 ms.",
        f"{MANUAL}(`--manual-gc --manual-gc-interval 100`): no rank then waits for another rank's "
        f"collector. {FREEZE}",
    )
    assert finding.evidence == {
        "share": pytest.approx(share),
        "recorded_share": pytest.approx(share),
        "collections": {0: 2},
        "idle_ns": {0: 99 * MS},
        "longest_ns": 49_500 * US,
    }
    assert finding.example is not None
    assert (finding.example[0], finding.example[1].start_ns) == (0, 100 * MS + MS // 2)
    assert found["launch_bound"].cause == "garbage_collection"
    assert found["launch_bound"].title.endswith(
        "of that time the CPU of rank 0 runs Python's garbage collector, 2 times, 99 ms in all."
    )
    assert found["launch_bound"].advice == finding.advice


def test_what_a_launch_waits_for_has_the_gain_of_what_it_waits_for(tmp_path: Path) -> None:
    stopped(rank_of(0, own=ALL_TOLD), at=(1, 3)).write(tmp_path / "rank-0.json")
    found = by_code(analyze(tmp_path, gains=True))
    both = [found["garbage_collection"], found["launch_bound"]]
    assert {(one.gain_ns, one.change) for one in both} == {(99 * MS // 4, "--garbage-collection 0")}


def test_ranks_that_collect_in_turn_lose_what_each_iteration_loses(tmp_path: Path) -> None:
    analysis = analysed(
        tmp_path,
        *(
            stopped(rank_of(rank, world_size=2, own=ALL_TOLD), at=(rank, rank + 2))
            for rank in range(2)
        ),
    )
    finding = by_code(analysis)["garbage_collection"]
    assert finding.title == (
        "For 50 % of the window a GPU, in each iteration that of the rank that loses most, is idle "
        "while Python's garbage collector runs: 4 collections on 2 of 2 ranks, the longest "
        "49.5 ms."
    )
    assert finding.evidence["share"] == pytest.approx(4 * 49.5 / 399)


def test_the_collector_is_no_suspect_where_no_collection_ran(tmp_path: Path) -> None:
    def advice(folder: str, own: dict[str, Any] | None, *, stops: bool = False) -> list[str]:
        ranks = (
            stopped(rank_of(rank, world_size=2, own=own), at=(rank, rank + 2), spans=False)
            for rank in range(2)
        )
        found = by_code(analysed(tmp_path / folder, *ranks))
        assert ("garbage_collection" in found) == stops
        return [found["exposed_communication_dp"].advice, found["launch_bound"].advice]

    assert all(COLLECTOR in text for text in advice("old", None))
    assert all(COLLECTOR not in text for text in advice("told", ALL_TOLD))
    elsewhere = {"garbage_collection": {**COUNTS, "unrecorded": 2}}
    assert all(COLLECTOR in text for text in advice("elsewhere", elsewhere, stops=True))


def test_collections_while_the_gpu_works_cost_nothing(tmp_path: Path) -> None:
    trace = rank_of(0, own=ALL_TOLD).step(3, 0, 100 * MS)
    trace.gpu(GEMM, 2 * MS, 98 * MS, launch=MS).annotation(MIDDLE, 3 * MS, 90 * MS)
    analysis = analysed(tmp_path, trace)
    assert analysis.ranks[0].host.collections == GarbageCollections(1, 87 * MS, 0, (0,), 0)
    assert "garbage_collection" not in by_code(analysis)


def test_collections_on_a_thread_that_launches_nothing_hold_nobody_up(tmp_path: Path) -> None:
    analysis = analysed(tmp_path, stopped(rank_of(0), at=(1,), tid=OTHER_THREAD))
    collections = analysis.ranks[0].host.collections
    assert collections == GarbageCollections(1, 49_500 * US, 0, (0, 0, 0, 0), None)
    assert "garbage_collection" not in by_code(analysis)


def test_a_trace_that_tells_nothing_is_unknown(tmp_path: Path) -> None:
    analysis = analysed(tmp_path, stopped(rank_of(0), at=(1,), spans=False))
    assert analysis.ranks[0].host.collections is None


def test_the_collector_is_named_and_not_the_function_around_it(tmp_path: Path) -> None:
    trace = stopped(rank_of(0, own=ALL_TOLD), at=(1, 3))
    for number in (1, 3):
        start = 100 * number * MS
        trace.slice("python_function", "train.py(7): step", start + 100 * US, 50 * MS)
    host = analysed(tmp_path, trace).ranks[0].host
    assert [(one.kind, one.name, one.time_ns) for one in host.idle_holders] == [
        ("collection", COLLECTOR, 99 * MS),
        # 1 ms without a collection, cut to the idle time.
        ("python", "train.py(7): step", 2 * 500 * US),
    ]
    assert host.long_gaps is not None
    assert (host.long_gaps.function, host.long_gaps.function_ns) == (COLLECTOR, 99 * MS)


def test_a_collection_inside_of_the_data_loader_counts(tmp_path: Path) -> None:
    trace = stopped(rank_of(0, own=ALL_TOLD), at=(1,))
    trace.annotation(
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 100 * MS, 151 * MS
    )
    collections = analysed(tmp_path, trace).ranks[0].host.collections
    assert collections is not None
    assert collections.idle_ns == 49_500 * US


def test_a_late_rank_that_collects_is_told_so(tmp_path: Path) -> None:
    late = stopped(rank_of(0, world_size=2, own=ALL_TOLD), at=(0, 1, 2, 3))
    other = stopped(rank_of(1, world_size=2, own=ALL_TOLD), at=())
    found = by_code(analysed(tmp_path, late, other))
    assert found["straggler"].title.endswith("most of it while Python's garbage collector runs.")
    assert found["straggler"].advice.startswith(MANUAL)


@pytest.mark.parametrize(
    ("argv", "title", "advice"),
    [
        (
            ("--manual-gc", "--manual-gc-interval", "8"),
            "the longest 49.5 ms. One window in 8 iterations: 12 % of training.",
            "Collect less often: this run does so every 8 iterations (`--manual-gc-interval`). "
            f"{FREEZE}",
        ),
        (
            ("--manual-gc",),
            "the longest 49.5 ms.",
            "Find out what calls `gc.collect()`: with `--manual-gc` and no `--manual-gc-interval` "
            "Megatron itself collects only around an evaluation (`--no-manual-gc-eval` ends "
            "that); with stacks in the trace (`--torch-profile-with-stack`) the caller is around "
            "the span.",
        ),
    ],
)
def test_what_to_do_where_the_flag_is_given_already(
    tmp_path: Path, argv: tuple[str, ...], title: str, advice: str
) -> None:
    trace = stopped(rank_of(0, *argv, own=ALL_TOLD), at=(1, 3))
    finding = by_code(analysed(tmp_path, trace))["garbage_collection"]
    assert finding.title.endswith(title)
    assert finding.advice == advice


def test_a_rare_collection_that_a_window_happens_to_hold_is_no_finding(tmp_path: Path) -> None:
    argv = ("--manual-gc", "--manual-gc-interval", "100")
    analysis = analysed(tmp_path, stopped(rank_of(0, *argv, own=ALL_TOLD), at=(1,)))
    assert "garbage_collection" not in by_code(analysis)


def test_other_loops_are_told_what_to_call(tmp_path: Path) -> None:
    trace = stopped(TraceBuilder(own={"loop": "pytorch", **ALL_TOLD}), at=(1, 3))
    assert by_code(analysed(tmp_path, trace))["garbage_collection"].advice == (
        f"{MANUAL}(in Megatron: `--manual-gc --manual-gc-interval 100`): no rank then waits for "
        f"another rank's collector. {FREEZE} In a loop of your own: `gc.disable()` before it, and "
        "`gc.collect()` in every hundredth iteration."
    )


@pytest.mark.parametrize("own", [{"garbage_collection": 3}, {"garbage_collection": {}}])
def test_metadata_of_somebody_else_tells_nothing(tmp_path: Path, own: dict[str, Any]) -> None:
    analysis = analysed(tmp_path, stopped(rank_of(0, own=own), at=(1,), spans=False))
    assert analysis.ranks[0].host.collections is None
