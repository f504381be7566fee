# SPDX-License-Identifier: Apache-2.0
"""Memory events of a trace are answered as a snapshot is."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from command_line import invoked
from snapshot_builder import MIB, SnapshotBuilder
from trace_builder import GEMM, TraceBuilder, instant, op

from megatron import torch_trace
from megatron.torch_trace.allocator.answer import answers_of, memory
from megatron.torch_trace.allocator.device_memory import DeviceMemory
from megatron.torch_trace.allocator.growth import Growth
from megatron.torch_trace.allocator.holders import Holder
from megatron.torch_trace.allocator.pictures.curves import curves_of
from megatron.torch_trace.allocator.purpose.categories import Category
from megatron.torch_trace.errors import UsageError

BESIDE = Path(__file__).parents[3] / "shared" / "data" / "h200" / "tp2pp2-stack" / "rank-2.json.gz"
RECORDED = Path(__file__).parents[1] / "data" / "tp2pp2-stack" / "rank-0.pt.trace.json.gz"


class MemoryTrace:
    """A trace whose memory events keep count of what is in use; sizes in MiB."""

    def __init__(self, in_use: int = 100, reserved: int = 200) -> None:
        self.built = TraceBuilder(5, 8)
        self.in_use, self.reserved = in_use * MIB, reserved * MIB

    def change(self, ts: int, address: int, size: int, **other: Any) -> MemoryTrace:
        self.in_use += size * MIB
        args = {
            "Addr": address,
            "Bytes": size * MIB,
            "Device Type": 1,
            "Device Id": 0,
            "Total Allocated": self.in_use,
            "Total Reserved": self.reserved,
        }
        self.built.add(instant("[memory]", ts, cat="cpu_instant_event", args=args | other))
        return self

    def write(self, folder: Path) -> Path:
        return self.built.write(folder / "rank-5.json.gz")


def test_use_follows_torchs_own_count_and_holders_are_what_was_open(tmp_path: Path) -> None:
    trace = MemoryTrace()
    trace.built.annotation("forward micro-batch 0", 10, 40).op("aten::mm", 20, 30)
    trace.built.add(op("model/mlp.py(7): forward", 15, 35, cat="python_function"))
    trace.change(25, 4096, 8).change(38, 8192, 2)
    trace.built.op("autograd::engine::evaluate_function: MmBackward0", 60, 80)
    trace.change(70, 4096, -8).change(75, 4096, 1)
    (answer,) = memory(trace.write(tmp_path))
    assert (answer.rank, answer.device, answer.fragmentation) == (5, 0, None)
    assert answer.usage.in_use.tolist() == [n * MIB for n in (100, 108, 110, 102, 103)]
    assert answer.peak_bytes == 110 * MIB
    assert answer.holders == (
        Holder(100 * MIB, 1, Category.UNKNOWN, "", ()),
        Holder(
            8 * MIB,
            1,
            Category.ACTIVATIONS,
            "mlp.py forward",
            ("model/mlp.py:7 forward",),
        ),
        Holder(2 * MIB, 1, Category.ACTIVATIONS, "forward micro-batch", ("forward micro-batch",)),
    )


def test_what_begins_as_memory_is_taken_is_open_and_what_is_longer_is_around_it(
    tmp_path: Path,
) -> None:
    trace = MemoryTrace()
    trace.built.op("aten::mm", 20, 30).annotation("forward micro-batch 0", 20, 40)
    trace.change(20, 4096, 8).change(30, 8192, 2)
    (answer,) = memory(trace.write(tmp_path))
    stacks = {one.size // MIB: one.stack for one in answer.holders}
    assert stacks == {100: (), 8: ("aten::mm", "forward micro-batch"), 2: ("forward micro-batch",)}


def test_what_the_window_frees_of_before_counts_once(tmp_path: Path) -> None:
    trace = MemoryTrace(in_use=100).change(10, 4096, -30).change(20, 8192, 5)
    (answer,) = memory(trace.write(tmp_path))
    assert answer.usage.in_use.tolist() == [n * MIB for n in (100, 70, 75)]


def test_reserved_memory_follows_torchs_own_count(tmp_path: Path) -> None:
    trace = MemoryTrace(reserved=200).change(10, 4096, 1)
    trace.reserved = 260 * MIB
    trace.change(20, 8192, 1)
    trace.reserved = 240 * MIB
    trace.change(30, 16384, 1)
    (answer,) = memory(trace.write(tmp_path))
    assert answer.usage.reserved[[0, -1]].tolist() == [200 * MIB, 240 * MIB]
    assert (answer.peak_reserved, answer.cuda_allocations) == (260 * MIB, 1)


def test_growth_goes_by_profiler_steps(tmp_path: Path) -> None:
    trace = MemoryTrace()
    for number in range(6):
        trace.built.step(number, 100 * number, 100 * number + 90)
        trace.built.op("keep", 100 * number + 10, 100 * number + 30)
        trace.change(100 * number + 20, 4096 * (number + 1), 3)
    (answer,) = memory(trace.write(tmp_path))
    assert answer.growth == (Growth(3 * MIB, 4, True, ("keep",)),)


def test_memory_of_the_cpu_and_events_without_numbers_do_not_count(tmp_path: Path) -> None:
    trace = MemoryTrace().change(10, 4096, 1)
    trace.change(20, 8192, 50, **{"Device Type": 0, "Device Id": -1})
    trace.change(30, 8192, 50, Addr=None)
    (answer,) = memory(trace.write(tmp_path))
    assert (answer.peak_bytes, answer.entries) == (101 * MIB, 1)


def test_a_trace_without_memory_events_says_how_to_record_them(tmp_path: Path) -> None:
    path = TraceBuilder().op("aten::mm", 0, 10).write(tmp_path / "rank-0.json.gz")
    with pytest.raises(UsageError, match="no memory events of a GPU; record with --torch-profile-"):
        memory(path)


def test_in_a_folder_snapshots_come_before_traces(tmp_path: Path) -> None:
    MemoryTrace().change(10, 4096, 1).write(tmp_path)
    assert [one.peak_bytes for one in memory(tmp_path)] == [101 * MIB]
    built = SnapshotBuilder()
    built.alloc(7 * MIB)
    built.write(tmp_path / "rank-5.memory_snapshot.pickle")
    assert [one.peak_bytes for one in memory(tmp_path)] == [7 * MIB]


def test_a_recorded_traces_use_is_what_torch_counted() -> None:
    with gzip.open(RECORDED) as file:
        events = json.load(file)["traceEvents"]
    counts = [
        (one["ts"], one["args"]["Total Allocated"], one["args"]["Total Reserved"])
        for one in events
        if one["name"] == "[memory]" and one["args"]["Device Type"] == 1
    ]
    counts.sort()
    (answer,) = memory(RECORDED)
    assert answer.usage.in_use[1:].tolist() == [in_use for _, in_use, _ in counts]
    assert answer.peak_reserved == max(reserved for *_, reserved in counts)
    assert sum(answer.categories.values()) == answer.peak_bytes


def test_the_analysis_of_a_trace_with_memory_events_has_their_findings(tmp_path: Path) -> None:
    trace = MemoryTrace()
    trace.built.entries["profile_memory"] = 1
    trace.built.entries["deviceProperties"] = [{"id": 0, "totalGlobalMem": 400 * MIB}]
    trace.built.gpu(GEMM, 100, 200)
    path = trace.change(25, 4096, 8).change(38, 8192, 2).write(tmp_path)
    codes = [one.code for one in torch_trace.analyze(path).findings]
    assert "unused_headroom" in codes
    document = json.loads(invoked("analyze", path, "--json", "--no-gains").stdout)
    assert [one["code"] for one in document["findings"]] == codes


def summits(path: Path, kept: int) -> list[int]:
    """Where activations fall again by half a micro-batch: how many micro-batches were kept.

    Args:
        path: a trace.
        kept: micro-batches that the stage keeps at most.
    """
    devices: list[DeviceMemory] = []
    answers_of(path, on_device=devices.append)
    heights = curves_of(devices[0]).categories[Category.ACTIVATIONS] / 1.0
    heights *= kept / heights.max()
    found, top, lowest, rises = [], 0.0, 0.0, True
    for height in heights.tolist():
        top, lowest = max(top, height), min(lowest, height)
        if rises and height < top - 0.5:
            found.append(round(top))
            lowest, rises = height, False
        elif not rises and height > lowest + 0.5:
            top, rises = height, True
    return found


def test_a_recorded_first_stage_of_two_keeps_two_micro_batches_again_and_again() -> None:
    """Rank 0 of TP2 x PP2 on H200s, four micro-batches: 1F1B keeps two on the first stage."""
    assert summits(RECORDED, 2) == [2, 2, 2]


@pytest.mark.slow
@pytest.mark.skipif(
    not BESIDE.exists(),
    reason="the repository does not hold large recordings, nor does ../shared/data",
)
def test_a_recorded_last_stage_keeps_one_micro_batch() -> None:
    assert summits(BESIDE, 1) == [1, 1, 1, 1]
