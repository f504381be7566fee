# SPDX-License-Identifier: Apache-2.0
"""The iteration without the profiler: told by the trace and beside it, and what follows from it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from trace_builder import GEMM, TraceBuilder

from megatron.torch_trace.analysis.compare.comparison import compare
from megatron.torch_trace.analysis.compare.conditions import judge, parse
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding
from megatron.torch_trace.analysis.run.analyse import analyze
from megatron.torch_trace.analysis.run.kept_analyses import keep
from megatron.torch_trace.format.undisturbed_iterations import (
    UndisturbedIterations,
    beside,
    slowdown_sentence,
)
from megatron.torch_trace.report.comparison.document import comparison_document
from megatron.torch_trace.report.comparison.text import render_comparison
from megatron.torch_trace.report.html.page import render_html
from megatron.torch_trace.report.json_document import document
from megatron.torch_trace.report.text import render

US, MS = 1_000, 1_000_000
BEFORE = [[n, 585 * MS] for n in range(2, 12)]
RUN = "20261127-221810"


def trace(
    *,
    recorded_ms: int = 693,
    idle_ms: int = 150,
    step: int = 12,
    rank: int = 0,
    world_size: int = 1,
    **own: Any,
) -> TraceBuilder:
    """One iteration; after `idle_ms` of Python the CPU launches one product, which fills it."""
    told = {"schema": 1, "run": RUN, "rank": rank, **own}
    made = TraceBuilder(rank, world_size, own=told).step(step, 0, recorded_ms * MS)
    return made.gpu(
        GEMM, idle_ms * MS, recorded_ms * MS, launch=idle_ms * MS - 10 * US, call="cudaLaunchKernel"
    )


def written(folder: Path, made: TraceBuilder, after: Iterable[Any] = (), **more: Any) -> Path:
    """A trace in a window's folder, and beside it what came after, if anything."""
    path = made.write(folder / RUN / "iter-0000012" / "rank-0.pt.trace.json")
    if after:
        told = {"schema": 1, "run": RUN, "rank": 0, "window": {"first": 12, "last": 12}}
        there = beside(path)
        there.parent.mkdir(exist_ok=True)
        there.write_text(json.dumps({**told, "undisturbed": list(after), **more}))
    return path


def findings(analysis: Analysis) -> dict[str, Finding]:
    return {finding.code: finding for finding in analysis.findings}


def test_the_first_lines_say_how_much_the_profiler_slowed_the_iteration(tmp_path: Path) -> None:
    after = [[n, 587 * MS] for n in range(14, 24)]
    path = written(tmp_path, trace(undisturbed_iterations=BEFORE), after)
    analysis = analyze(path)
    (rank,) = document(analysis)["ranks"]
    assert rank["undisturbed_iteration_ns"] == 586 * MS
    assert rank["undisturbed_iterations"] == 20
    assert rank["slowdown"] == pytest.approx(693 / 586)
    sentence = (
        "Recorded iteration 693 ms; undisturbed 586 ms (median of 20): the profiler slowed it by "
        "18 %."
    )
    assert render(analysis).splitlines()[1] == sentence
    assert sentence.replace(" ms", "\u00a0ms") in render_html(analysis).replace(" ms", "\u00a0ms")


def test_the_trace_alone_tells_what_came_before(tmp_path: Path) -> None:
    analysis = analyze(written(tmp_path, trace(undisturbed_iterations=BEFORE)))
    assert analysis.ranks[0].undisturbed.lengths == tuple(map(tuple, BEFORE))
    assert analysis.summary.slowdown == pytest.approx(693 / 585)


@pytest.mark.parametrize("own", [{}, {"undisturbed_iterations": BEFORE[:4]}])
def test_without_five_of_them_it_is_unknown_and_said_once(
    tmp_path: Path, own: dict[str, Any]
) -> None:
    analysis = analyze(written(tmp_path, trace(**own)))
    (rank,) = document(analysis)["ranks"]
    assert (rank["undisturbed_iteration_ns"], rank["slowdown"]) == (None, None)
    said = " ".join(render(analysis).split())
    assert said.lower().count("undisturbed") == 1
    assert (
        "Undisturbed iteration unknown: the trace does not tell of 5 iterations without the "
        "profiler near its window."
    ) in said


@pytest.mark.parametrize(
    "told",
    [
        pytest.param({"rank": 1}, id="of another rank"),
        pytest.param({"run": "20261127-000000"}, id="of another run"),
        pytest.param({"window": {"first": 13, "last": 14}}, id="of another window"),
        pytest.param({"window": None}, id="of no window"),
        pytest.param({"undisturbed": {"14": 1}}, id="without pairs"),
        pytest.param(
            {
                "undisturbed": [
                    [14],
                    [15, "1"],
                    [16, -1],
                    [17, 1.5],
                    None,
                    [18, 1 << 80],
                    [1 << 80, 5],
                ]
            },
            id="broken",
        ),
    ],
)
def test_a_file_beside_it_that_is_of_something_else_tells_nothing(
    tmp_path: Path, told: dict[str, Any]
) -> None:
    after = [[n, 900 * MS] for n in range(14, 34)]
    path = written(tmp_path, trace(undisturbed_iterations=BEFORE), after, **told)
    assert analyze(path).ranks[0].undisturbed_iteration_ns == 585 * MS


def test_a_pipe_in_its_place_is_not_waited_for(tmp_path: Path) -> None:
    path = written(tmp_path, trace(undisturbed_iterations=BEFORE), [[14, 1]])
    beside(path).unlink()
    os.mkfifo(beside(path))
    assert analyze(path).ranks[0].undisturbed_iteration_ns == 585 * MS


@pytest.mark.parametrize("text", ["", "[1, 2]", "{", "[" * 100_000])
def test_a_file_beside_it_that_cannot_be_read_tells_nothing(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, trace(undisturbed_iterations=BEFORE), [[14, 1]])
    beside(path).write_text(text)
    assert analyze(path).ranks[0].undisturbed_iteration_ns == 585 * MS


def test_what_capture_did_not_write_as_pairs_is_left_out(tmp_path: Path) -> None:
    made = trace(undisturbed_iterations=[*BEFORE, "9", [True, 5], [3], {}, [50, 0]])
    assert len(analyze(written(tmp_path, made)).ranks[0].undisturbed.lengths) == 10
    assert not analyze(written(tmp_path, trace(undisturbed_iterations=7))).ranks[0].slowdown


def test_a_kept_analysis_carries_it_and_takes_what_came_later(tmp_path: Path) -> None:
    path = written(tmp_path, trace(undisturbed_iterations=BEFORE))
    keep([path], jobs=1)
    written(tmp_path, trace(undisturbed_iterations=BEFORE), [[n, 587 * MS] for n in range(14, 24)])
    kept, read = analyze(path), analyze(path, use_partials=False)
    assert document(kept) == document(read)
    assert kept.ranks[0].undisturbed_iteration_ns == 586 * MS
    path.unlink()
    beside(path).unlink()
    assert analyze(path.parent).ranks[0].undisturbed_iteration_ns == 585 * MS


def test_mfu_and_speeds_are_of_the_undisturbed_iteration(tmp_path: Path) -> None:
    flops = 989.4e12 * 0.585 / 2
    own = {"model_flops_per_iteration": flops, "tokens_per_iteration": 8 * 2048}
    made = trace(undisturbed_iterations=BEFORE, **own)
    analysis = analyze(written(tmp_path, made))
    assert analysis.mfu.value == pytest.approx(0.5)
    assert analysis.mfu.of == "undisturbed"
    said = " ".join(render(analysis).split())
    assert "; MFU 50 % of the undisturbed iteration." in said
    assert "Undisturbed: 495 model TFLOP/s a GPU, 28,007 tokens/s." in said
    assert "(585 ms undisturbed x 1 GPUs x 989.4 dense TFLOP/s)" in said


def test_mfu_without_it_is_of_the_recorded_iteration(tmp_path: Path) -> None:
    made = trace(model_flops_per_iteration=989.4e12 * 0.693 / 2, tokens_per_iteration=693)
    analysis = analyze(written(tmp_path, made))
    assert (analysis.mfu.value, analysis.mfu.of) == (pytest.approx(0.5), "recorded")
    assert analysis.mfu.tokens_per_s == pytest.approx(1000)
    assert "tokens/s" not in render(analysis)


def test_idle_that_the_slowdown_explains_is_no_finding(tmp_path: Path) -> None:
    without = findings(analyze(written(tmp_path / "a", trace())))
    assert "22 % of the window" in without["launch_bound"].title
    told = analyze(written(tmp_path / "b", trace(undisturbed_iterations=BEFORE)))
    assert "launch_bound" not in findings(told), "108 of 150 ms are the profiler's: 7 % of 585 ms"
    assert (
        "Idle 22 % of the iteration: 22 % waiting for the CPU to launch work. Of that, the "
        "profiler's slowdown explains 16 % of the iteration."
    ) in " ".join(render(told).split())


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
        "The profiler's slowdown explains 0.3 ms, since this rank launches more than the others; "
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
    assert "The undisturbed iteration is unknown in B." in said


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


def test_a_window_that_was_cut_short_has_no_slowdown(tmp_path: Path) -> None:
    made = trace(recorded_ms=100, idle_ms=10, undisturbed_iterations=BEFORE)
    path = made.write(tmp_path / "rank-0.partial.pt.trace.json")
    analysis = analyze(path)
    assert (analysis.ranks[0].slowdown, analysis.summary.slowdown) == (None, None)
    assert "Undisturbed iteration 585 ms (median of 10)." in render(analysis)


def test_ranks_are_told_together(tmp_path: Path) -> None:
    for rank, told in enumerate((BEFORE, BEFORE[:8])):
        made = trace(rank=rank, world_size=2, undisturbed_iterations=told)
        made.write(tmp_path / f"rank-{rank}.pt.trace.json")
    assert (
        "Recorded iteration 693 ms; undisturbed 585 ms (medians of 8 to 10): the profiler slowed "
        "it by 18 %."
    ) in render(analyze(tmp_path))


@pytest.mark.parametrize(
    ("recorded", "undisturbed", "sentence"),
    [
        (693e6, 585e6, "Recorded iteration 693 ms; undisturbed 585 ms (median of 20): the "
         "profiler slowed it by 18 %"),
        (600e6, 598e6, "Recorded iteration 600 ms; undisturbed 598 ms (median of 20): the "
         "profiler did not slow it"),
        (500e6, 598e6, "Recorded iteration 500 ms; undisturbed 598 ms (median of 20): the "
         "profiler did not slow it"),
        (500e6, None, "Recorded iteration 500 ms; undisturbed unknown: fewer than 5 ran near the "
         "window without the profiler"),
    ],
)  # fmt: skip
def test_one_sentence_says_it_in_the_log_and_in_reports(
    recorded: float, undisturbed: float | None, sentence: str
) -> None:
    assert slowdown_sentence(recorded, undisturbed, [20, 20]) == sentence


def test_the_median_is_of_all_and_one_outlier_moves_nothing() -> None:
    lengths = [[n, 100] for n in range(9)] + [[9, 10**9]]
    assert UndisturbedIterations.of(lengths).median_ns == 100
