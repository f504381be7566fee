# SPDX-License-Identifier: Apache-2.0
"""The definitions of a rank, nanosecond by nanosecond, on small traces that hypothesis makes.

Every nanosecond of a window is looked at by itself: which kinds of work run in it decides what it
is. Slow, and as close to the words of the definitions as code can be.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from trace_builder import GEMM, NCCL, TraceBuilder, collective_args

from megatron.torch_trace.analysis.communication.collectives import attribute
from megatron.torch_trace.analysis.communication.totals import communication_rows, dimension_totals
from megatron.torch_trace.analysis.host.idle import IdleCauses, look_at_host
from megatron.torch_trace.analysis.timeline.breakdown import Breakdown, break_down
from megatron.torch_trace.analysis.timeline.time_slices import course_of
from megatron.torch_trace.analysis.timeline.timeline import Timeline

EXACTLY = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
COMPUTE, COPY, CLEAR, TP, DP = "compute", "copy", "clear", "tp", "dp"
LAUNCH_NS = 2
"""How long the builder's launch calls last."""
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


class Work(NamedTuple):
    """GPU work of [start, start + length) ns; `launch` None: before the trace began."""

    kind: str
    start: int
    length: int
    launch: int | None
    stream: int

    @property
    def end(self) -> int:
        return self.start + self.length

    @property
    def known_launch(self) -> int:
        return -1 if self.launch is None else self.launch


works = st.lists(
    st.builds(
        Work,
        kind=st.sampled_from([COMPUTE, COPY, CLEAR, TP, DP]),
        start=st.integers(0, 59),
        length=st.integers(0, 20),
        launch=st.one_of(st.none(), st.integers(0, 59)),
        stream=st.integers(7, 9),
    ),
    min_size=1,
    max_size=12,
)
edges = st.lists(st.integers(0, 59), max_size=4, unique=True).map(sorted)
spans = st.lists(st.tuples(st.integers(0, 59), st.integers(0, 10)), max_size=3)


def trace(work: list[Work], steps: list[int], *, clock: int = 0) -> TraceBuilder:
    """A step begins at each of `steps` and ends a ns before the next, the last after 7 ns."""
    built = TraceBuilder(clock=clock)
    for number, (start, following) in enumerate(zip(steps, [*steps[1:], None], strict=False)):
        built.step(number, start, start + 7 if following is None else following - 1)
    names = {COMPUTE: GEMM, COPY: "Memcpy HtoD", CLEAR: "Memset", TP: NCCL, DP: NCCL}
    categories = {COPY: "gpu_memcpy", CLEAR: "gpu_memset"}
    for one in work:
        args: dict[str, Any] | None = None
        if one.kind in (TP, DP):
            args = collective_args("allreduce", one.kind)
        built.gpu(
            names[one.kind], one.start, one.end, launch=one.launch, stream=one.stream, args=args,
            cat=categories.get(one.kind, "kernel"),
        )  # fmt: skip
    return built


def timeline_of(built: TraceBuilder) -> Timeline | None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            return built.timeline(Path(folder))
        except AssertionError:
            return None


def window(work: list[Work], steps: list[int]) -> tuple[int, int]:
    """From the first step to its end, or the end of the last work launched in a step."""
    if not steps:
        return min(one.start for one in work), max(one.end for one in work)
    start, end = steps[0], steps[-1] + 7
    inside = [one.end for one in work if one.launch is not None and start <= one.launch < end]
    return start, max([end, *inside])


def running(work: list[Work], time: int) -> set[str]:
    """Kinds of the work that runs in this nanosecond."""
    return {one.kind for one in work if one.start <= time < one.end}


def part_of(kinds: set[str]) -> str:
    """What a nanosecond is in which these kinds of work run."""
    if COMPUTE in kinds:
        return "compute"
    if kinds & {TP, DP}:
        return "exposed_communication"
    return "exposed_memory" if kinds else "idle"


def parts(work: list[Work], start: int, end: int) -> Breakdown:
    counted = Counter(part_of(running(work, time)) for time in range(start, end))
    names = ("compute", "exposed_communication", "exposed_memory", "idle")
    return Breakdown(*(counted[name] for name in names))


@EXACTLY
@given(works, edges)
@example([Work(TP, 5, 0, 3, 7)], [5])  # nothing but a kernel without a length, at the very edge
@example([Work(COMPUTE, 0, 10, None, 7), Work(DP, 10, 7, 11, 8)], [10])  # edges that touch
def test_every_nanosecond_is_one_of_four_parts(work: list[Work], steps: list[int]) -> None:
    start, end = window(work, steps)
    timeline = timeline_of(trace(work, steps))
    assert timeline is not None
    assert (timeline.window.start, timeline.window.end) == (start, end)
    whole, by_step = break_down(timeline.sets, timeline.window)
    assert whole == parts(work, start, end)
    bounds = zip(steps, [*steps[1:], end], strict=False)
    assert list(by_step) == [parts(work, *bound) for bound in bounds]
    busy = [running(work, time) for time in range(start, end)]
    assert timeline.sets.communication.total == sum(bool(kinds & {TP, DP}) for kinds in busy)
    if end > start:
        course = course_of(timeline.sets, timeline.window)
        assert list(course.compute) == [int(COMPUTE in kinds) for kinds in busy]


@EXACTLY
@given(works, edges)
def test_a_dimension_is_exposed_where_it_communicates_and_nothing_computes(
    work: list[Work], steps: list[int]
) -> None:
    start, end = window(work, steps)
    timeline = timeline_of(trace(work, steps))
    assert timeline is not None
    calls = attribute(timeline)
    busy = [running(work, time) for time in range(start, end)]
    expected = {}
    for kind in (TP, DP):
        # A call that only touches the window, or has no length at its edge, is not in it.
        count = sum(one.kind == kind and one.end > start and one.start < end for one in work)
        if count:
            time = sum(kind in kinds for kinds in busy)
            alone = sum(kind in kinds and COMPUTE not in kinds for kinds in busy)
            expected[kind] = (count, time, alone)
    rows = communication_rows(timeline, calls)
    assert {row.dimension: (row.calls, row.time_ns, row.exposed_ns) for row in rows} == expected
    totals = dimension_totals(timeline, calls)
    assert {one.dimension: (one.time_ns, one.exposed_ns) for one in totals} == {
        kind: (time, alone) for kind, (_, time, alone) in expected.items()
    }


@EXACTLY
@given(works, edges, spans, spans)
# The wait for the GPU ends in the very nanosecond in which the gap begins.
@example([Work(COMPUTE, 0, 10, 0, 7), Work(COMPUTE, 20, 5, 15, 7)], [], [], [(5, 5)])
# Without steps no thread is known that could be late at the window's end.
@example([Work(COMPUTE, 0, 1, None, 7), Work(COMPUTE, 2, 0, 7, 7)], [], [], [])
def test_every_idle_nanosecond_has_one_cause(
    work: list[Work],
    steps: list[int],
    loading: list[tuple[int, int]],
    syncing: list[tuple[int, int]],
) -> None:
    built = trace(work, steps)
    for start, length in loading:
        built.annotation(LOADER, start, start + length)
    for start, length in syncing:
        built.call("cudaDeviceSynchronize", start, start + length)
    timeline = timeline_of(built)
    assert timeline is not None
    start, end = window(work, steps)
    cpu_end = steps[-1] + 7 if steps else end
    launch = LAUNCH_NS if any(one.known_launch >= 0 for one in work) else 0
    waiting = [(at, length + launch) for at, length in syncing if start <= at < cpu_end]
    counted: Counter[str] = Counter()
    for time in range(start, end):
        if not running(work, time):
            counted[_cause(work, loading, waiting, time, (start, end), bool(steps))] += 1
    assert look_at_host(timeline).idle == IdleCauses(
        *(counted[cause] for cause in ("data", "sync", "cpu", "gpu", "unknown"))
    )


def _cause(
    work: list[Work],
    loading: list[tuple[int, int]],
    waiting: list[tuple[int, int]],
    time: int,
    bounds: tuple[int, int],
    loop_known: bool,
) -> str:
    """Why nothing runs at `time`, by the work that ends the gap which `time` is in."""
    begin, end = time, time
    while begin > bounds[0] and not running(work, begin - 1):
        begin -= 1
    while end < bounds[1] and not running(work, end):
        end += 1
    following = [one for one in work if one.start == end]
    if end == bounds[1]:
        launches = [one.known_launch for one in work if one.known_launch >= 0]
        if not loop_known or not launches or any(begin <= launch < end for launch in launches):
            return "unknown"
    elif not following or min(one.known_launch for one in following) < 0:
        return "unknown"
    elif time >= min(one.known_launch for one in following):
        return "gpu"
    if any(start <= time < start + length for start, length in loading):
        return "data"
    return "sync" if any(at <= time < at + length for at, length in waiting) else "cpu"
