# SPDX-License-Identifier: Apache-2.0
"""What the slowdown by the profiler explains: idle time, late CPUs, differences of two runs."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from trace_builder import GEMM, TraceBuilder
from undisturbed_runs import BEFORE, MS, US, findings, trace, written

from megatron.torch_trace.analysis.compare.comparison import compare
from megatron.torch_trace.analysis.compare.conditions import judge, parse
from megatron.torch_trace.analysis.results.analysis import Finding
from megatron.torch_trace.analysis.run.analyse import analyze
from megatron.torch_trace.report.comparison.document import comparison_document
from megatron.torch_trace.report.comparison.text import render_comparison
from megatron.torch_trace.report.text import render

DATA = Path(__file__).parents[2] / "data"


def test_idle_that_the_slowdown_explains_is_no_finding(tmp_path: Path) -> None:
    without = findings(analyze(written(tmp_path / "a", trace())))
    assert "22 % of the window" in without["launch_bound"].title
    told = analyze(written(tmp_path / "b", trace(undisturbed_iterations=BEFORE)))
    assert "launch_bound" not in findings(told), "108 of 150 ms are the profiler's: 7 % of 585 ms"
    assert (
        "Idle 22 % of the iteration: 22 % waiting for the CPU to launch work. Of that, the "
        "profiler's slowdown explains 16 % of the iteration."
    ) in " ".join(render(told).split())


def test_a_run_that_only_the_profiler_makes_launch_bound_is_not_called_so(tmp_path: Path) -> None:
    recorded = gzip.decompress((DATA / "dp4-slowed" / "rank-1.pt.trace.json.gz").read_bytes())
    path = tmp_path / "rank-1.pt.trace.json"
    path.write_bytes(recorded.replace(b'"undisturbed_iterations"', b'"something_else"'))
    first = analyze(path).findings[0]
    assert first.title.startswith(
        "The GPU is idle for 15 % of the window because the CPU has not launched the next kernel"
    )
    path.write_bytes(recorded)
    assert [finding.code for finding in analyze(path).findings][:2] == [
        "memory_copies",
        "exposed_communication_dp",
    ]


def test_idle_that_the_slowdown_explains_in_part_says_what_remains(tmp_path: Path) -> None:
    made = trace(idle_ms=300, undisturbed_iterations=BEFORE)
    finding = findings(analyze(written(tmp_path, made)))["launch_bound"]
    assert finding.title.startswith(
        "The GPU is idle for 43 % of the window because the CPU has not launched the next kernel "
        "yet (rank 0). The profiler's slowdown explains 16 % of the window; 33 % of the "
        "undisturbed iteration remains. "
    )
    assert finding.evidence["recorded_share"] == pytest.approx(299.99 / 693, abs=1e-4)
    assert finding.evidence["share"] == pytest.approx((299.99 - 108) / 585, abs=1e-4)
    assert finding.evidence["explained_ns"] == {0: 108 * MS}
    assert finding.share == finding.evidence["share"]
    assert "compare with the iteration time without it" not in finding.advice


def late_rank(folder: Path, *, launches: int, **own: Any) -> Finding | None:
    """Of three ranks one's CPU comes 200 us late to each of four all-reduces, and launches more."""
    for rank in range(3):
        made = TraceBuilder(rank, 3, own=own).step(12, 0, 4 * MS)
        for start in range(0, 4 * MS, MS):
            late = 200 * US if rank == 1 else 0
            made.gpu(GEMM, start + late + 100, start + late + 700 * US, launch=start + late)
            for number in range(launches if rank == 1 else 0):  # beside the first one
                at = start + late + 200 + number
                made.gpu("more", at + US, at + 2 * US, launch=at, stream=8)
            arrives = start + late + 700 * US + 100
            made.collective(arrives, start + 950 * US, size=3, launch=start + late + 50)
        made.write(folder / f"rank-{rank}.json")
    return findings(analyze(folder)).get("straggler")


def test_a_slowdown_that_all_ranks_share_explains_no_late_cpu(tmp_path: Path) -> None:
    finding = late_rank(
        tmp_path, launches=0, undisturbed_iterations=[[n, 3 * MS] for n in range(9)]
    )
    assert finding is not None
    assert finding.evidence["explained_ns"] == 0
    assert "slowdown" not in finding.title


def test_a_late_cpu_is_the_profiler_s_doing_as_far_as_it_launches_more(tmp_path: Path) -> None:
    without = late_rank(tmp_path / "a", launches=2)
    assert without is not None
    assert without.title.endswith("longer for the CPU than on the other ranks.")
    slowed = [[n, 3_400 * US] for n in range(9)]
    finding = late_rank(tmp_path / "b", launches=2, undisturbed_iterations=slowed)
    assert finding is not None
    # Half of its launches are more than those of the others, so half of 0.6 ms is.
    assert finding.evidence["explained_ns"] == 300 * US
    assert finding.title.endswith(
        "The profiler's slowdown explains 0.3 ms, because this rank launches more than the others; "
        "15 % of the undisturbed iteration remains."
    )
    slowed = [[n, 2_400 * US] for n in range(9)]
    assert late_rank(tmp_path / "c", launches=2, undisturbed_iterations=slowed) is None


def test_compare_tells_the_iterations_without_the_profiler(tmp_path: Path) -> None:
    sides = [
        analyze(written(tmp_path / name, trace(undisturbed_iterations=[[n, ns] for n in range(9)])))
        for name, ns in (("a", 585 * MS), ("b", 570 * MS))
    ]
    found = compare(*sides)
    assert (found.undisturbed.before, found.undisturbed.after) == (585 * MS, 570 * MS)
    said = " ".join(render_comparison(found, *sides, ("a", "b")).split())
    assert (
        "A a: rank 0; NVIDIA H200; step 12, 693 ms an iteration; MFU unknown. Recorded iteration "
        "693 ms; undisturbed 585 ms (median of 9): the profiler slowed it by 18 %. B b:"
    ) in said
    assert ("The undisturbed iteration takes 15 ms less in B (585 ms -> 570 ms, -2.6 %).") in said
    assert judge(parse("undisturbed < -2%"), found).holds
    assert comparison_document(found, *sides, ("a", "b"))["slowdown"]["before"] > 1


def test_compare_says_which_side_tells_nothing(tmp_path: Path) -> None:
    sides = [
        analyze(written(tmp_path / "a", trace(undisturbed_iterations=BEFORE))),
        analyze(written(tmp_path / "b", trace())),
    ]
    said = render_comparison(compare(*sides), *sides, ("a", "b"))
    assert "How long an iteration takes without the profiler is unknown in B." in said


def test_a_profiler_that_slows_nothing_explains_nothing(tmp_path: Path) -> None:
    made = trace(undisturbed_iterations=[[n, 700 * MS] for n in range(2, 12)])
    analysis = analyze(written(tmp_path, made))
    assert "(median of 10): the profiler did not slow it." in render(analysis)
    finding = findings(analysis)["launch_bound"]
    assert "slowdown explains" not in finding.title
    assert finding.evidence["share"] == finding.evidence["recorded_share"]


def test_launches_on_their_way_are_explained_after_the_cpu_and_not_what_is_held_up(
    tmp_path: Path,
) -> None:
    made = TraceBuilder(own={"undisturbed_iterations": [[n, 780 * US] for n in range(5)]})
    made.step(12, 0, 1200 * US)
    for start in range(0, 1200 * US, 60 * US):  # of each 60 us the GPU waits 20 for its launch
        made.gpu(GEMM, start + 22 * US, start + 60 * US, launch=start)
    analysis = analyze(written(tmp_path, made))
    idle = analysis.ranks[0].host.idle
    assert idle.gpu_ns > 300 * US
    assert "launched_not_started" not in findings(analysis)
    without = analyze(made.write(tmp_path / "b.json"), step=12)
    assert "launched_not_started" not in findings(without)
    made.entries["torch_profile"] = {}
    assert "launched_not_started" in findings(analyze(made.write(tmp_path / "c.json")))
