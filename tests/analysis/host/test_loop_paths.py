# SPDX-License-Identifier: Apache-2.0
"""Where the training loop's thread spends the window, by what encloses what."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import BACKWARD, GEMM, TraceBuilder

from megatron.torch_trace.analysis.host.loop_paths import (
    CALL,
    MOST_ROWS,
    OPERATOR,
    PYTHON,
    SPAN,
    THREAD,
    LoopPath,
    loop_paths,
)
from megatron.torch_trace.analysis.timeline.moment import Moment

MS = 1_000_000


def paths(trace: TraceBuilder, folder: Path) -> tuple[LoopPath, ...]:
    """Of a trace whose step goes from 0 to 100 ms."""
    return loop_paths(trace.step(1, 0, 100 * MS).timeline(folder))


def test_each_path_has_its_time_its_own_and_the_row_that_it_lies_in(tmp_path: Path) -> None:
    trace = TraceBuilder().annotation("optimizer", 60 * MS, 80 * MS)
    trace.op("aten::mm", 10 * MS, 30 * MS).call("cudaLaunchKernel", 14 * MS, 20 * MS)
    trace.op("aten::mm", 40 * MS, 50 * MS).call("cudaLaunchKernel", 41 * MS, 42 * MS)
    trace.op("aten::mm", 70 * MS, 75 * MS)
    assert paths(trace, tmp_path) == (
        LoopPath(0, None, THREAD, "", 1, 100 * MS, 50 * MS),
        # The longest first; equal names in another path are another row.
        LoopPath(1, 0, OPERATOR, "aten::mm", 2, 30 * MS, 23 * MS),
        LoopPath(2, 1, CALL, "cudaLaunchKernel", 2, 7 * MS, 7 * MS),
        LoopPath(3, 0, SPAN, "optimizer", 1, 20 * MS, 15 * MS),
        LoopPath(4, 3, OPERATOR, "aten::mm", 1, 5 * MS, 5 * MS),
    )


def test_a_row_knows_its_longest_slice(tmp_path: Path) -> None:
    trace = TraceBuilder().op("aten::mm", 10 * MS, 15 * MS).op("aten::mm", 20 * MS, 30 * MS)
    trace.op("aten::mm", 40 * MS, 50 * MS)
    assert [one.longest for one in paths(trace, tmp_path)] == [None, Moment(20 * MS, 10 * MS)]


def test_what_is_short_is_counted_together_where_it_lies(tmp_path: Path) -> None:
    trace = TraceBuilder().op("aten::linear", 0, 50 * MS)
    trace.op("aten::t", 1 * MS, 1 * MS + 400_000).op("aten::view", 3 * MS, 3 * MS + 300_000)
    trace.op("aten::mm", 5 * MS, 5 * MS + 500_000)
    # What lies in the short one is in its time, and no path of the row.
    trace.op("aten::transpose", 1 * MS, 1 * MS + 100_000)
    trace.op("aten::item", 60 * MS, 60 * MS + 200_000)
    assert paths(trace, tmp_path) == (
        LoopPath(0, None, THREAD, "", 1, 100 * MS, 49_800_000, 200_000, 1),
        LoopPath(1, 0, OPERATOR, "aten::linear", 1, 50 * MS, 48_800_000, 700_000, 2),
        LoopPath(2, 1, OPERATOR, "aten::mm", 1, 500_000, 500_000),
    )


def test_of_many_paths_the_longest_have_rows(tmp_path: Path) -> None:
    # 190 paths, each in the one before but for every tenth, and the thread.
    trace = TraceBuilder()
    for number in range(19):
        for depth in range(10):
            trace.op(f"aten::op{number}.{depth}", number * 5 * MS, (number + 1) * 5 * MS - depth)
    found = paths(trace, tmp_path)
    assert len(found) == MOST_ROWS
    # Of 12 the last two levels have no row, of 7 the last one.
    assert sum(one.others for one in found) == 12 + 7
    for row in found:
        inside = sum(one.time_ns for one in found if one.above == row.number)
        assert row.time_ns == row.self_ns + row.others_ns + inside


def test_names_that_differ_in_a_number_only_are_one_row(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for number in range(3):
        at = number * 30 * MS
        trace.annotation(f"forward micro-batch {number} (steady)", at, at + 20 * MS)
        trace.annotation(f"decoder.layers.{number}.mlp: MLP", at + MS, at + 11 * MS)
        graph = f"## Call CompiledFxGraph f{number}abcdefghijklmnopqrstuvwxyz ##"
        trace.annotation(graph, at + 2 * MS, at + 3 * MS).op(graph, at + 5 * MS, at + 7 * MS)
    assert [(one.name, one.calls, one.time_ns // MS) for one in paths(trace, tmp_path)[1:]] == [
        ("forward micro-batch", 3, 60),
        ("decoder.layers.*.mlp: MLP", 3, 30),
        ("## Call CompiledFxGraph * ##", 3, 6),  # operator
        ("## Call CompiledFxGraph * ##", 3, 3),  # span
    ]


def test_python_functions_enclose_what_they_begin_and_end_with(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for number in range(2):
        at = number * 40 * MS
        trace.slice("python_function", f"nn.Module: MLP_{number}", at, 20 * MS)
        trace.slice("python_function", "mlp.py(7): forward", at, 20 * MS)
        trace.op("aten::mm", at, at + 20 * MS)
    assert [(one.above, one.kind, one.name, one.calls) for one in paths(trace, tmp_path)] == [
        (None, THREAD, "", 1),
        (0, PYTHON, "nn.Module: MLP", 2),
        (1, PYTHON, "mlp.py(7): forward", 2),
        (2, OPERATOR, "aten::mm", 2),
    ]


def test_only_the_thread_of_the_loop_and_the_window_count(tmp_path: Path) -> None:
    trace = TraceBuilder().op("aten::mm", 40 * MS, 60 * MS, tid=BACKWARD)
    trace.op("before", -20 * MS, 10 * MS).op("after", 90 * MS, 130 * MS)
    assert [(one.name, one.time_ns // MS) for one in paths(trace, tmp_path)] == [
        ("", 100),
        ("before", 10),
        ("after", 10),
    ]


def test_a_slice_that_ends_after_what_encloses_it_is_cut_there(tmp_path: Path) -> None:
    trace = TraceBuilder().op("outer", 10 * MS, 50 * MS).op("inner", 30 * MS, 52 * MS)
    trace.op("next", 50 * MS, 70 * MS)
    assert paths(trace, tmp_path) == (
        LoopPath(0, None, THREAD, "", 1, 100 * MS, 40 * MS),
        LoopPath(1, 0, OPERATOR, "outer", 1, 40 * MS, 20 * MS),
        LoopPath(2, 1, OPERATOR, "inner", 1, 20 * MS, 20 * MS),
        LoopPath(3, 0, OPERATOR, "next", 1, 20 * MS, 20 * MS),
    )


def test_without_a_thread_of_the_loop_there_are_no_paths(tmp_path: Path) -> None:
    trace = TraceBuilder().gpu(GEMM, 0, 100)
    assert loop_paths(trace.timeline(tmp_path)) == ()


def test_a_thread_with_nothing_but_steps_has_no_paths(tmp_path: Path) -> None:
    assert paths(TraceBuilder().gpu(GEMM, 0, 10 * MS), tmp_path) == ()


def _reference(slices: list[tuple[int, int, str]], length: int) -> dict[tuple[str, ...], int]:
    """path -> time, one nanosecond after the other."""
    found: dict[tuple[str, ...], int] = {}
    for now in range(length):
        around: list[tuple[int, int, str]] = []
        for start, end, name in slices:
            # It is cut where what was open at its begin ends.
            last = min([end, *(one[1] for one in around if one[0] <= start < one[1])])
            around.append((start, last, name))
        path = tuple(name for start, end, name in around if start <= now < end)
        for depth in range(1, len(path) + 1):
            found[path[:depth]] = found.get(path[:depth], 0) + 1
    return found


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 35), st.integers(1, 20), st.sampled_from("abc")), max_size=8)
)
def test_paths_are_those_that_a_clock_would_count(drawn: list[tuple[int, int, str]]) -> None:
    trace = TraceBuilder().step(1, 0, 40)
    slices = sorted(
        ((start, min(start + dur, 40), name) for start, dur, name in drawn),
        key=lambda one: (one[0], -one[1]),
    )
    for start, end, name in slices:
        trace.op(name, start, end)
    with tempfile.TemporaryDirectory() as folder:
        found = loop_paths(trace.timeline(Path(folder)))
    names: list[tuple[str, ...]] = []
    for row in found:
        names.append(() if row.above is None else (*names[row.above], row.name))
    times = {path: row.time_ns for path, row in zip(names, found, strict=True) if path}
    assert times == _reference(slices, 40)
