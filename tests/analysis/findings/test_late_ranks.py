# SPDX-License-Identifier: Apache-2.0
"""Late ranks of several groups: each is compared with those that wait for it."""

from __future__ import annotations

from pathlib import Path

from trace_builder import GEMM, TraceBuilder

from megatron.torch_trace.analysis.results.analysis import Finding
from megatron.torch_trace.analysis.run.analyse import analyze

MS = 1_000_000


def pairs(
    folder: Path, late: dict[int, int], *, compute: dict[int, int] | None = None, ranks: int = 4
) -> list[Finding]:
    """Data-parallel pairs (0, 1), (2, 3), ...: of each the odd rank may be late.

    Args:
        late: rank -> us by which its CPU launches everything later.
        compute: rank -> us that it computes in each of four parts of a ms; 500 where not given.
    """
    for rank in range(ranks):
        first = rank - rank % 2
        trace = TraceBuilder(rank, ranks, own={"host": "node-1"}).step(1, 0, 4 * MS)
        own = 1000 * (compute or {}).get(rank, 500)
        for number in range(4):
            start = number * MS + 1000 * late.get(rank, 0)
            trace.gpu(GEMM, start + 100, start + own, launch=start)
            members = {"Process Group Name": f"dp{first}",
                       "Process Group Ranks": str([first, first + 1])}  # fmt: skip
            end = number * MS + 950_000
            trace.collective(start + own + 100, end, launch=start + 50, **members)
        trace.write(folder / f"rank-{rank}.json")
    return [one for one in analyze(folder).findings if one.code == "straggler"]


def test_a_rank_is_compared_with_those_that_wait_for_it_not_with_another_stage(
    tmp_path: Path,
) -> None:
    # Ranks 2 and 3 are of a stage that computes 0.4 ms less each time: no reason for rank 1.
    (finding,) = pairs(tmp_path, {1: 200}, compute={2: 100, 3: 100})
    assert finding.title == (
        "Rank 1 arrives last in 100 % of the data-parallel all-reduces. Rank 0 waits 0.8 ms for "
        "rank 1, 20 % of the window. On rank 1 the GPU waits 0.8 ms longer for the CPU than on "
        "rank 0."
    )
    assert finding.evidence["waiting_ranks"] == [0]


def test_two_late_ranks_are_two_findings(tmp_path: Path) -> None:
    found = pairs(tmp_path, {1: 200, 3: 300})
    assert [one.evidence["rank"] for one in found] == [3, 1]


def test_many_that_are_late_for_the_same_reason_are_one_finding_about_the_worst(
    tmp_path: Path,
) -> None:
    (finding,) = pairs(tmp_path, {1: 200, 3: 300, 5: 250, 7: 200}, ranks=8)
    assert finding.title == (
        "Ranks 1, 3, 5, 7, all on host node-1, arrive last in 100 % of the data-parallel "
        "all-reduces of their groups. The worst is rank 3: rank 2 waits 1.2 ms for rank 3, 30 % "
        "of the window. On rank 3 the GPU waits 1.2 ms longer for the CPU than on rank 2."
    )
    assert (finding.evidence["rank"], finding.evidence["ranks"]) == (3, [1, 3, 5, 7])


def test_many_that_are_late_for_different_reasons_stay_apart(tmp_path: Path) -> None:
    found = pairs(tmp_path, {1: 200, 3: 200, 5: 200}, compute={7: 700}, ranks=8)
    assert sorted(len(one.evidence.get("ranks", [0])) for one in found) == [1, 3]
