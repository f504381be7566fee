# SPDX-License-Identifier: Apache-2.0
"""Timelines of several ranks: one clock, any number of processes, and what is refused."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from command_line import MAIN
from timeline_reader import read_timeline, unpacked
from trace_builder import (
    collective_args,
    kernel,
    launch,
    op,
    step,
    write_rank,
)

from megatron.torch_trace.errors import StrictError, UsageError
from megatron.torch_trace.perfetto import convert

GROUP = collective_args("allreduce", "tp", nelems=8, dtype="Float")


def rank(folder: Path, number: int, clock: int) -> Path:
    """A rank that leaves three all-reduces with the others; its clock is ahead by `clock` ns."""
    events = [step(1, 100_000 + clock, 300_000 + clock)]
    for call, at in enumerate((120_000, 160_000, 200_000), 1):
        start, end = at + 10_000 * number + clock, at + 30_000 + clock
        events.append(launch(at - 15_000 + clock, at - 14_000 + clock, call))
        events.append(kernel("ncclDevKernel_AllReduce", start, end, call, Seq=call, **GROUP))
    base = 1_790_857_026_000_000_000
    return write_rank(
        folder / f"rank-{number}.json", *events, rank=number, baseTimeNanoseconds=base
    )


def test_ranks_are_aligned_by_the_ends_of_collectives_and_begin_at_0(tmp_path: Path) -> None:
    traces = [rank(tmp_path, 1, 1_000_000_500), rank(tmp_path, 0, 0)]
    output = tmp_path / "all.pftrace.gz"
    result = convert(traces, output, jobs=1)
    assert result.ranks == [0, 1]
    assert result.clock_ns == {0: 0, 1: -1_000_000_500}
    assert result.offset_ns == {0: -100_000, 1: -1_000_100_500}
    timeline = read_timeline(output)
    ends: dict[str, list[int]] = {}
    for one in timeline.slices:
        if one.name.startswith("nccl"):
            ends.setdefault(one.row, []).append(one.ts + (one.dur or 0))
    assert ends == {
        "rank 00 stream 7 tp": [50_000, 90_000, 130_000],
        "rank 01 stream 7 tp": [50_000, 90_000, 130_000],
    }
    # CLOCK_REALTIME beside the timeline's: 0 of the timeline is this moment.
    assert timeline.clocks[1] - timeline.clocks[6] == 1_790_857_026_000_000_000 + 100_000


def test_the_same_traces_give_the_same_file_with_one_process_or_two(tmp_path: Path) -> None:
    traces = [rank(tmp_path, number, 0) for number in (0, 1)]
    convert(traces, tmp_path / "one.pftrace", jobs=1)
    seen: list[float] = []
    convert(traces, tmp_path / "two.pftrace", jobs=2, on_progress=seen.append)
    assert unpacked(tmp_path / "one.pftrace") == unpacked(tmp_path / "two.pftrace")
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


@pytest.mark.parametrize("suffix", [".pftrace.gz", ".pftrace.zst"])
def test_the_name_says_how_a_timeline_is_compressed(suffix: str, tmp_path: Path) -> None:
    trace = rank(tmp_path, 0, 0)
    convert(trace, tmp_path / "plain.pftrace")
    convert(trace, tmp_path / f"packed{suffix}")
    assert unpacked(tmp_path / f"packed{suffix}") == (tmp_path / "plain.pftrace").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        f"packed{suffix}", "plain.pftrace", "rank-0.json",
    ]  # fmt: skip


def test_what_cannot_work_is_said_and_leaves_nothing_behind(tmp_path: Path) -> None:
    one, other = rank(tmp_path, 0, 0), tmp_path / "copy.json"
    other.write_bytes(one.read_bytes())
    with pytest.raises(UsageError, match="both are rank 0; name only one"):
        convert([one, other], tmp_path / "out.pftrace", jobs=1)
    with pytest.raises(UsageError, match="--args few: must be one of all, some, none"):
        convert(one, tmp_path / "out.pftrace", args="few")
    merged = write_rank(
        tmp_path / "merged.json", op("a", 0, 1_000), torch_profile={"merged": {"ranks": []}}
    )
    with pytest.raises(UsageError, match="a merged trace"):
        convert(merged, tmp_path / "out.pftrace")
    for window in ("iter-0000003", "iter-0000005"):
        (tmp_path / window).mkdir()
        rank(tmp_path / window, 0, 0)
    with pytest.raises(UsageError, match=r"holds 2 windows .* name one of these folders"):
        convert(tmp_path, tmp_path / "out.pftrace")
    cut = tmp_path / "cut.json"
    cut.write_bytes(one.read_bytes()[:-40])
    with pytest.raises(StrictError):
        convert(cut, tmp_path / "out.pftrace", strict=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "copy.json", "cut.json", "iter-0000003", "iter-0000005", "merged.json", "rank-0.json",
    ]  # fmt: skip
    kept = tmp_path / "out.pftrace"
    kept.write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        convert(one, kept)
    assert kept.read_text() == "mine"


def test_a_process_that_reads_something_else_says_so(tmp_path: Path) -> None:
    other = tmp_path / "rank-1.json"
    other.write_text("no trace")
    with pytest.raises(UsageError, match=r"rank-1\.json: no trace"):
        convert([rank(tmp_path, 0, 0), other], tmp_path / "out.pftrace", jobs=2)


def test_the_command_writes_what_is_whole_of_a_cut_trace_and_exits_with_3(tmp_path: Path) -> None:
    trace = rank(tmp_path, 0, 0)
    whole = trace.read_bytes()
    trace.write_bytes(whole[: whole.rindex(b'"ph"') + 20])
    done = subprocess.run(
        [*MAIN, "convert", str(trace), "-o", "-", "--args", "none"], capture_output=True
    )
    assert done.returncode == 3
    assert b"the file ends in the middle; whole events up to there were kept" in done.stderr
    (tmp_path / "out.pftrace").write_bytes(done.stdout)
    assert len(read_timeline(tmp_path / "out.pftrace").slices) == 6
