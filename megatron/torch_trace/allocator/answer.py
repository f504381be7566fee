# SPDX-License-Identifier: Apache-2.0
"""What a user asks of a process's memory, answered from its snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from megatron.torch_trace.allocator.cuda_memory.failures import OutOfMemory, failures_of
from megatron.torch_trace.allocator.cuda_memory.requests import CudaRequests, cuda_requests
from megatron.torch_trace.allocator.device_memory import DeviceMemory, device_memory
from megatron.torch_trace.allocator.fragmentation import Fragmentation, fragmentation_of
from megatron.torch_trace.allocator.growth import Growth, growth_of
from megatron.torch_trace.allocator.held import Held, held_by
from megatron.torch_trace.allocator.holders import Holder
from megatron.torch_trace.allocator.memory_files import find_memory_files, is_snapshot
from megatron.torch_trace.allocator.purpose.categories import Category
from megatron.torch_trace.allocator.snapshot import Snapshot
from megatron.torch_trace.allocator.snapshot_file import read_snapshot
from megatron.torch_trace.allocator.trace_memory import read_trace_memory
from megatron.torch_trace.allocator.usage import Usage
from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.files.sources import rank_in_name
from megatron.torch_trace.reader import NotATraceError


@dataclass(frozen=True, slots=True)
class MemoryAnswer:
    """The memory of one device in one process.

    Args:
        path: the snapshot or the trace.
        rank: of the process; None if neither the file nor its name says.
        device: index.
        peak_bytes: most bytes in use at once, over the history.
        peak_time: ns since 1970 of that moment; 0 where the history has no times.
        peak_reserved: most bytes that the allocator had from CUDA.
        categories: bytes at the peak.
        holders: at the peak, the largest first.
        at_end: what is in use at the snapshot.
        fragmentation: at the snapshot; None of a trace, which does not tell segments apart.
        growth: what grows from step to step.
        out_of_memory: requests that failed, the last one last.
        entries: length of the history.
        seconds: how long the history is; 0 where it has no times.
        cuda: what the allocator asked of CUDA in the history.
        usage: over time.
        cut_short: the file ends before the snapshot does.
        odd: entries that are not what torch writes.
        expandable: whether segments grow (`expandable_segments:True`).
    """

    path: Path
    rank: int | None
    device: int
    peak_bytes: int
    peak_time: int
    peak_reserved: int
    categories: dict[Category, int]
    holders: tuple[Holder, ...]
    at_end: Held
    fragmentation: Fragmentation | None
    growth: tuple[Growth, ...]
    out_of_memory: tuple[OutOfMemory, ...]
    entries: int
    seconds: float
    cuda: CudaRequests
    usage: Usage
    cut_short: bool
    odd: int
    expandable: bool

    @property
    def cuda_allocations(self) -> int:
        """How often the allocator asked CUDA for memory in the history."""
        return self.cuda.asked

    def without_history(self) -> MemoryAnswer:
        """The same in little memory: the arrays of `usage` are empty."""
        return replace(self, usage=self.usage.peak_alone())

    @property
    def at_peak(self) -> Held:
        """What is in use at the peak."""
        return Held(self.peak_bytes, self.categories, self.holders)


def memory(
    path: Path | str | Iterable[Path | str], *, on_read: Callable[[int], None] | None = None
) -> tuple[MemoryAnswer, ...]:
    """Say who holds a GPU's memory, when it peaks and what grows.

    Args:
        path: an allocator snapshot, as `torch.cuda.memory._dump_snapshot` writes it, maybe
            compressed since; a trace with memory events; a folder, in which all are found; or
            several of these.
        on_read: called with the bytes of each piece read from a file.

    Returns:
        An answer for each device on which a process holds memory, in the order of the files; sizes
        in bytes, moments in ns since 1970. docs/memory.md defines the numbers.

    Raises:
        UsageError: a file is neither, or is a pickle that asks for more than plain data.
    """
    paths = [path] if isinstance(path, (str, Path)) else path
    return tuple(
        answer for file in find_memory_files(paths) for answer in answers_of(file, on_read=on_read)
    )


def answers_of(
    path: Path,
    *,
    on_read: Callable[[int], None] | None = None,
    on_device: Callable[[DeviceMemory], None] | None = None,
) -> tuple[MemoryAnswer, ...]:
    """The answers from one file, the fullest device first.

    Args:
        path: the file.
        on_read: called with the bytes of each piece read from the file.
        on_device: gets all that is known of each device, which is large, for more than the answer.
    """
    if is_snapshot(path):
        snapshot, rank = read_snapshot(path, on_read), rank_in_name(path.name)
    else:
        snapshot, rank = _of_a_trace(path, on_read)
    found = []
    for device in snapshot.devices:
        memory = device_memory(snapshot, rank, device)
        found.append(_answer(memory))
        if on_device:
            on_device(memory)
    return tuple(sorted(found, key=lambda one: -one.peak_bytes))


def _of_a_trace(path: Path, on_read: Callable[[int], None] | None) -> tuple[Snapshot, int | None]:
    try:
        snapshot, rank = read_trace_memory(path, on_read)
    except NotATraceError:
        raise UsageError(f"{path}: neither an allocator snapshot nor a trace.") from None
    if not len(snapshot.history):
        raise UsageError(
            f"{path}: the trace has no memory events of a GPU; record with "
            "--torch-profile-profile-memory."
        )
    return snapshot, rank_in_name(path.name) if rank is None else rank


def _answer(memory: DeviceMemory) -> MemoryAnswer:
    snapshot, history, usage = memory.snapshot, memory.history, memory.usage
    allocations = memory.allocations
    at_peak, at_end = (
        held_by(allocations, memory.categories, snapshot.stacks, allocations.alive(entry))
        for entry in (usage.peak_entry, len(history) - 1)
    )
    return MemoryAnswer(
        path=snapshot.path,
        rank=memory.rank,
        device=memory.device,
        peak_bytes=usage.peak_bytes,
        peak_time=usage.peak_time,
        peak_reserved=usage.peak_reserved,
        categories=at_peak.categories,
        holders=at_peak.holders,
        at_end=at_end,
        fragmentation=fragmentation_of(snapshot, memory.device) if snapshot.has_blocks else None,
        growth=growth_of(snapshot, history, allocations),
        out_of_memory=failures_of(snapshot, history, memory.device),
        entries=len(history),
        seconds=(int(history.time[-1]) - int(history.time[0])) / 1e9 if len(history) else 0.0,
        cuda=cuda_requests(snapshot, history),
        usage=usage,
        cut_short=snapshot.cut_short,
        odd=snapshot.odd,
        expandable=bool(snapshot.settings.get("expandable_segments")),
    )
