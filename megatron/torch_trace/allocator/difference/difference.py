# SPDX-License-Identifier: Apache-2.0
"""`torch-trace memory PATH --against BASE`: the same ranks, before and after."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from megatron.torch_trace.allocator.answer import MemoryAnswer, memory
from megatron.torch_trace.allocator.difference.changes import Change, HeldChange, changes_of
from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.wording import counted

_Place = tuple[int | None, int]


@dataclass(frozen=True, slots=True)
class MemoryDifference:
    """One device of one rank, before and after.

    Args:
        before, after: the two answers.
        at_peak: what is in use at the peak of each.
        at_end: what is in use at the end of each.
        reserved: most bytes that the allocator had from CUDA.
        scattered: free bytes between blocks in use at the snapshot; None where a side is a trace.
    """

    before: MemoryAnswer
    after: MemoryAnswer
    at_peak: HeldChange
    at_end: HeldChange
    reserved: Change
    scattered: Change | None

    @property
    def rank(self) -> int | None:
        """Of the process, None where neither side tells it."""
        return self.before.rank if self.after.rank is None else self.after.rank


@dataclass(frozen=True, slots=True)
class MemoryDifferences:
    """All ranks that both sides have.

    Args:
        ranks: in the order of `after`.
        only_before, only_after: what the other side does not have.
    """

    ranks: tuple[MemoryDifference, ...]
    only_before: tuple[MemoryAnswer, ...]
    only_after: tuple[MemoryAnswer, ...]

    @property
    def largest(self) -> MemoryDifference:
        """The rank whose peak changes most."""
        return max(self.ranks, key=lambda one: abs(one.at_peak.total.change))


def memory_difference(
    path: Path | str | Iterable[Path | str],
    against: Path | str,
    *,
    on_read: Callable[[int], None] | None = None,
) -> MemoryDifferences:
    """Say what grew, what is new and what is gone in memory, at the peak and at the end.

    Args:
        path: snapshots or traces with memory events, as `memory` takes them.
        against: what they are compared with.
        on_read: called with the bytes of each piece read from a file.

    Returns:
        A difference for each device of each rank, in bytes, after minus before; a single one on
        each side is compared whatever its rank.

    Raises:
        UsageError: see `memory`; or no rank is on both sides, or one is there twice.
    """
    return differences(memory(against, on_read=on_read), memory(path, on_read=on_read))


def differences(before: Sequence[MemoryAnswer], after: Sequence[MemoryAnswer]) -> MemoryDifferences:
    """The same from answers."""
    if not before or not after:
        raise UsageError("--against: one of the snapshots is empty: no memory and no history.")
    if len(before) == len(after) == 1:
        return MemoryDifferences((_difference(before[0], after[0]),), (), ())
    old, new = _by_place(before), _by_place(after)
    both = [rank for rank in new if rank in old]
    if not both:
        raise UsageError(
            f"{after[0].path} and {before[0].path}: no rank is on both sides; compare windows of "
            "the same ranks, or one file with one file."
        )
    return MemoryDifferences(
        tuple(_difference(old[rank], new[rank]) for rank in both),
        tuple(one for rank, one in old.items() if rank not in new),
        tuple(one for rank, one in new.items() if rank not in old),
    )


def _by_place(answers: Sequence[MemoryAnswer]) -> dict[_Place, MemoryAnswer]:
    found: dict[_Place, MemoryAnswer] = {}
    for one in answers:
        first = found.setdefault((one.rank, one.device), one)
        if first is not one:
            whose = "no rank in their names" if one.rank is None else f"rank {one.rank}"
            raise UsageError(
                f"{first.path} and {one.path}: {counted(2, 'snapshot')} with {whose}; name one "
                "window's folder, or one file."
            )
    return found


def _difference(before: MemoryAnswer, after: MemoryAnswer) -> MemoryDifference:
    free = before.fragmentation, after.fragmentation
    return MemoryDifference(
        before,
        after,
        changes_of(before.at_peak, after.at_peak),
        changes_of(before.at_end, after.at_end),
        Change("reserved", before.peak_reserved, after.peak_reserved),
        Change("free between", free[0].scattered, free[1].scattered)
        if free[0] and free[1]
        else None,
    )
