# SPDX-License-Identifier: Apache-2.0
"""The iteration without the profiler: told by the trace and beside it, and what follows from it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from analyze_document import document
from undisturbed_runs import BEFORE, MS, trace, written

from megatron.torch_trace.analysis.run.analyse import analyze
from megatron.torch_trace.analysis.run.kept_analyses import keep
from megatron.torch_trace.format.undisturbed_iterations import (
    UndisturbedIterations,
    beside,
    slowdown_sentence,
)
from megatron.torch_trace.report.html.page import render_html
from megatron.torch_trace.report.text import render
from megatron.torch_trace.wording import duration


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
        "Undisturbed iteration unknown: the trace does not hold the times of 5 iterations without "
        "the "
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


def iterations(*ms: float) -> UndisturbedIterations:
    return UndisturbedIterations.of([at, round(one * MS)] for at, one in enumerate(ms))


EVEN = iterations(*[598] * 19, 9000)
UNEVEN = iterations(*range(100, 300, 10))


@pytest.mark.parametrize(
    ("recorded", "around", "sentence"),
    [
        (693, EVEN, "undisturbed 598 ms (median of 20): the profiler slowed it by 16 %"),
        (600, EVEN, "undisturbed 598 ms (median of 20): the profiler did not slow it"),
        (500, EVEN, "undisturbed 598 ms (median of 20): the profiler did not slow it"),
        (500, iterations(598), "undisturbed unknown: fewer than 5 ran near the window without the "
         "profiler"),
        (270, UNEVEN, "undisturbed 195 ms (median of 20), most of them 119 ms to 271 ms: the "
         "profiler slowed it by no more than iterations differ"),
        (300, UNEVEN, "undisturbed 195 ms (median of 20): the profiler slowed it by 54 %"),
        (4580, EVEN, "undisturbed 598 ms (median of 20): 666 % longer, because of the profiler or "
         "because it was a slow iteration"),
    ],
)  # fmt: skip
def test_one_sentence_says_it_in_the_log_and_in_reports(
    recorded: float, around: UndisturbedIterations, sentence: str
) -> None:
    shown = duration(recorded * MS)
    said = slowdown_sentence(recorded * MS, around.median_ns, [around, around])
    assert said == f"Recorded iteration {shown}; {sentence}"


def test_the_median_is_of_all_and_one_outlier_moves_nothing() -> None:
    lengths = [[n, 100] for n in range(9)] + [[9, 10**9]]
    assert UndisturbedIterations.of(lengths).median_ns == 100
