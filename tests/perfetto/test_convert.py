# SPDX-License-Identifier: Apache-2.0
"""Timelines of small traces, decoded packet by packet."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from timeline_reader import Timeline, read_timeline
from trace_builder import (
    CPU,
    GPU,
    LOOP,
    arrow,
    arrow_end,
    collective_args,
    counter,
    instant,
    kernel,
    launch,
    mark,
    metadata,
    op,
    step,
    write_rank,
)

from megatron.torch_trace.perfetto import convert

GROUP = collective_args("allreduce", "tp", nelems=8, dtype="Float")


def converted(trace: Path, **options: str) -> Timeline:
    output = trace.with_suffix(".pftrace")
    convert(trace, output, force=True, **options)  # type: ignore[arg-type]
    return read_timeline(output)


def shown(timeline: Timeline) -> list[tuple[str, str, int, int | None]]:
    return [(one.row, one.name, one.ts, one.dur) for one in timeline.slices]


def test_a_rank_has_a_gpu_with_named_streams_and_a_cpu_with_threads(tmp_path: Path) -> None:
    trace = write_rank(
        tmp_path / "rank-0.json",
        step(3, 100_000, 150_000),
        metadata("thread_name", CPU, LOOP, name="thread 42 (python3)"),
        op("autograd", 105_000, 110_000, tid=43),
        launch(110_000, 111_000, 1), launch(112_000, 113_000, 2), launch(114_000, 115_000, 3),
        kernel("gemm", 120_000, 130_000, 1),
        kernel("ncclDevKernel_AllReduce", 120_000, 130_000, 2, stream=27, **GROUP),
        kernel("Memcpy HtoD", 120_000, 130_000, 3, stream=31, cat="gpu_memcpy"),
        mark("ProfilerStep#3", 119_000, 131_000),
        mark("nccl:all_reduce", 120_000, 130_000, stream=27),
        op("Activity Buffer Request", 130_000, 131_000, cat="overhead", pid=-1, tid=0),
    )  # fmt: skip
    timeline = converted(trace)
    assert list(timeline.rows.values()) == [
        "rank 00 GPU",
        "rank 00 stream 7 compute",
        "rank 00 stream 27 tp annotations",
        "rank 00 stream 27 tp",
        "rank 00 stream 31 copy",
        (10000, "rank 00 CPU"),
        (10000, 10000, "rank 00 main thread 42 (python3)"),
        (10000, 10001, "rank 00 thread 43"),
        (10000, 10002, "rank 00 profiler overhead"),
        "rank 00 launched work waiting",
    ]
    assert {one.row for one in timeline.slices if one.name == "ProfilerStep#3"} == {
        "rank 00 GPU",
        "rank 00 main thread 42 (python3)",
    }
    assert min(one.ts for one in timeline.slices) == 0


def test_slices_instants_and_arrows_are_all_there(tmp_path: Path) -> None:
    call, work = launch(110_000, 111_000, 1), kernel("gemm", 120_125, 130_625, 1)
    trace = write_rank(
        tmp_path / "rank-0.json",
        op("outer", 100_000, 150_000), op("inner", 110_000, 115_000), call, work,
        arrow(1, call, work), arrow("odd", call, work, "other"),
        arrow_end("s", 9, 100_000),
        instant("here", 111_000, cat="cpu_instant_event"),
        instant("Iteration Start", 100_000, pid="Traces", tid="Trace"),
    )  # fmt: skip
    timeline = converted(trace)
    assert sorted(shown(timeline), key=lambda one: (one[2], one[1])) == [
        ("rank 00 profiler Traces: Trace", "Iteration Start", 0, None),
        ("rank 00 thread 42", "outer", 0, 50_000),
        ("rank 00 thread 42", "cudaLaunchKernel", 10_000, 1_000),
        ("rank 00 thread 42", "inner", 10_000, 5_000),
        ("rank 00 thread 42", "here", 11_000, None),
        ("rank 00 stream 7 compute", "gemm", 20_125, 10_500),
    ]
    assert [(a.name, b.name) for a, b in timeline.arrows()] == [("cudaLaunchKernel", "gemm")] * 2
    assert {one.name: one.category for one in timeline.slices}["Iteration Start"] is None


def test_slices_that_cross_move_to_a_lane_of_their_own(tmp_path: Path) -> None:
    trace = write_rank(
        tmp_path / "rank-0.json",
        op("a", 0, 10_000), op("b", 5_000, 15_000), op("c", 6_000, 9_000),
        kernel("k", 0, 10_000, 1), kernel("l", 9_000, 14_000, 2),
    )  # fmt: skip
    timeline = converted(trace)
    assert shown(timeline) == [
        ("rank 00 stream 7 compute", "k", 0, 10_000),
        ("rank 00 thread 42", "a", 0, 10_000),
        ("rank 00 thread 42 crossing 1", "b", 5_000, 10_000),
        ("rank 00 thread 42", "c", 6_000, 3_000),
        ("rank 00 stream 7 compute crossing 1", "l", 9_000, 5_000),
    ]
    names = timeline.rows
    above = {names[child]: names[parent] for child, parent in timeline.parents.items()}
    assert above["rank 00 thread 42 crossing 1"] == (10000, 10000, "rank 00 thread 42")
    assert above["rank 00 stream 7 compute crossing 1"] == "rank 00 GPU"


RANGES = st.tuples(st.sampled_from(["cpu", "gpu", "mark"]), st.integers(0, 9), st.integers(0, 5))


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(RANGES, min_size=1, max_size=12))
def test_nothing_is_lost_however_slices_cross(
    tmp_path: Path, ranges: list[tuple[str, int, int]]
) -> None:
    make = {
        "cpu": lambda n, start, end: op(f"{n}", start, end),
        "gpu": lambda n, start, end: kernel(f"{n}", start, end, n),
        "mark": lambda n, start, end: mark(f"{n}", start, end),
    }
    events = [
        make[kind](n, ts * 1000, (ts + dur) * 1000) for n, (kind, ts, dur) in enumerate(ranges, 1)
    ]
    timeline = converted(write_rank(tmp_path / "rank-0.json", *events))
    first = min(ts for _, ts, _ in ranges)
    assert sorted((int(one.name), one.ts, one.dur) for one in timeline.slices) == [
        (n, (ts - first) * 1000, dur * 1000) for n, (_, ts, dur) in enumerate(ranges, 1)
    ]


ODD_ARGUMENTS = {
    "negative": -5, "large": 1 << 40, "beyond": 1 << 70, "real": 0.25, "flag": False,
    "text": "ähm \"</script>", "list": [[4096, 1024], []], "nothing": None,
}  # fmt: skip


def test_all_arguments_come_back_with_their_types(tmp_path: Path) -> None:
    trace = write_rank(
        tmp_path / "rank-0.json",
        op("a", 0, 10_000, args=ODD_ARGUMENTS),
        op("b", 20_000, 21_000, args={"negative": 7, "real": 3}),
        op("c", 30_000, 31_000, args={"negative": "x", "real": None}), op("d", 40_000, 41_000),
    )  # fmt: skip
    timeline = converted(trace, args="all")
    assert [one.args for one in timeline.slices] == [
        {
            "negative": -5, "large": 1 << 40, "beyond": str(1 << 70), "real": 0.25, "flag": False,
            "text": "ähm \"</script>", "list": "[[4096,1024],[]]",
        },
        {"negative": 7, "real": 3},
        {"negative": "x"},
        {},
    ]  # fmt: skip


def test_whole_numbers_that_no_float_holds_beside_others_are_texts(tmp_path: Path) -> None:
    many = [op("a", n * 10_000, n * 10_000 + 5, args={"size": 0.5}) for n in range(3)]
    huge = op("b", 90_000, 90_005, args={"size": 10**400})
    timeline = converted(write_rank(tmp_path / "rank-0.json", *many, huge), args="all")
    assert [one.args for one in timeline.slices] == [{"size": "0.5"}] * 3 + [{"size": str(10**400)}]


def test_without_asking_one_gets_the_arguments_that_tell_something(tmp_path: Path) -> None:
    args = {"External id": 4, "Record function id": 0}
    comms = op("record_param_comms", 20_000, 21_000, args=args | GROUP)
    work = kernel("k", 30_000, 31_000, 5, queued=0, grid=[1, 2, 3])
    trace = write_rank(tmp_path / "rank-0.json", op("mm", 0, 10_000, args=args), comms, work)
    told = {"External id": 4, **GROUP}
    of_work = {"stream": 7, "correlation": 5, "grid": "[1,2,3]"}
    assert [one.args for one in converted(trace).slices] == [{}, told, of_work]

    shapes = args | {"Input Dims": [[2, 2]]}
    trace = write_rank(tmp_path / "rank-0.json", op("mm", 0, 10_000, args=shapes), work)
    assert [one.args for one in converted(trace).slices] == [
        {"External id": 4, "Input Dims": "[[2,2]]"},
        of_work,
    ]
    assert not any(one.args for one in converted(trace, args="none").slices)


def test_memory_and_waiting_work_are_counters(tmp_path: Path) -> None:
    def allocation(ts: int, allocated: int) -> str:
        args = {
            "Total Allocated": allocated, "Total Reserved": 500, "Bytes": 1, "Device Id": GPU,
            "Device Type": 1,
        }  # fmt: skip
        return instant("[memory]", ts, cat="cpu_instant_event", args=args)

    trace = write_rank(
        tmp_path / "rank-0.json",
        allocation(5_000, 200), allocation(1_000, 100),
        launch(1_000, 2_000, 1), launch(2_000, 3_000, 2), launch(3_000, 4_000, 3),
        kernel("a", 4_000, 5_000, 1), kernel("b", 5_000, 6_000, 2), kernel("c", 6_000, 7_000, 3),
    )  # fmt: skip
    timeline = converted(trace)
    assert timeline.counters == {
        "rank 00 memory allocated": [(0, 100), (4_000, 200)],
        "rank 00 memory reserved": [(0, 500), (4_000, 500)],
        "rank 00 launched work waiting": [(3_000, 2), (4_000, 1), (5_000, 0)],
    }
    assert sum(one.name == "[memory]" for one in timeline.slices) == 2


S = 1_000_000_000
FAR = 10_000_000 * S
NEVER = f'{{"ph": "X", "cat": "cpu_op", "name": "never", "pid": {CPU}, "tid": {LOOP}}}'


def test_events_without_a_true_time_are_left_out_and_said(tmp_path: Path) -> None:
    trace = write_rank(
        tmp_path / "rank-0.json",
        [op("a", at, at + 500) for at in range(0, 100_000, 1_000)],
        op("open", 95_500, 94_500), op("far", FAR, FAR + 1_000),
        NEVER, counter("count", 3_000, n=1),
        arrow(4, op("a", 3_000, 4_000), op("nowhere", 3_000, 4_000, tid=99)),
    )  # fmt: skip
    result = convert(trace, tmp_path / "out.pftrace")
    timeline = read_timeline(tmp_path / "out.pftrace")
    assert len(timeline.slices) == 101
    assert [(one.ts, one.dur) for one in timeline.slices if one.name == "open"] == [(95_500, 4_000)]
    assert result.notes == (
        f"{trace}: 1 of phase C are neither slices, instants nor arrows and were left out.",
        f"{trace}: 2 events left out: without a time, or impossibly far away.",
        f"{trace}: 1 arrow left out, because one end is on no slice.",
    )


def test_a_kernel_that_overruns_the_next_one_by_seconds_is_cut_there_and_said(
    tmp_path: Path,
) -> None:
    trace = write_rank(
        tmp_path / "rank-0.json",
        op("host", 0, 9 * S), kernel("k", 0, 5 * S, 1),
        kernel("l", 3 * S // 2, 3 * S // 2 + 10_000, 2),
        kernel("m", 0, 5 * S, 3, stream=8),
        kernel("n", 9 * S // 2, 9 * S // 2 + 10_000, 4, stream=8),
    )  # fmt: skip
    result = convert(trace, tmp_path / "out.pftrace")
    timeline = read_timeline(tmp_path / "out.pftrace")
    assert {one.name: one.dur for one in timeline.slices} == {
        "host": 9_000_000_000, "k": 1_500_000_000, "l": 10_000,
        "m": 5_000_000_000, "n": 10_000,
    }  # fmt: skip
    assert result.notes == (
        f"{trace}: 1 kernel cut short, which ran more than a second into the next kernel of "
        "the same stream.",
    )


def test_a_launch_of_many_kernels_has_an_arrow_to_each(tmp_path: Path) -> None:
    call = launch(0, 5_000, 1)
    work = [kernel("k", at, at + 500, 1) for at in range(10_000, 610_000, 1_000)]
    ends = [arrow(1, call, one)[1] for one in work]
    trace = write_rank(tmp_path / "rank-0.json", call, work, arrow(1, call, work[0])[0], ends)
    arrows = converted(trace).arrows()
    assert [(a.name, b.ts) for a, b in arrows] == [
        ("cudaLaunchKernel", (10 + n) * 1000) for n in range(600)
    ]


def test_a_trace_without_events_is_an_empty_timeline(tmp_path: Path) -> None:
    result = convert(write_rank(tmp_path / "rank-0.json"), tmp_path / "out.pftrace")
    assert (result.slices, result.offset_ns) == (0, {0: 0})
    assert read_timeline(tmp_path / "out.pftrace").slices == []
