# SPDX-License-Identifier: Apache-2.0
"""Memory over time by category, in as many points as a screen can show.

The history is cut into pieces of equal time. Of each piece the fullest and the emptiest moment
stay, with all their categories: peaks, the global one above all, are where and what they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.allocator.device_memory import DeviceMemory
from megatron.torch_trace.allocator.history.passes import passes_of
from megatron.torch_trace.allocator.purpose.categories import CATEGORIES, Category
from megatron.torch_trace.allocator.snapshot import Annotation
from megatron.torch_trace.allocator.usage import over_time
from megatron.torch_trace.analysis.timeline.span_names import microbatch_span, phase_of
from megatron.torch_trace.format.integer_arrays import Ints, ints
from megatron.torch_trace.format.step_names import marks_a_step

PIECES = 500
_MOST_RANGES = 400
_OPTIMIZER = "Optimizer.step#"


@dataclass(frozen=True, slots=True)
class Range:
    """What training did, [start, end) in ns since 1970.

    Args:
        kind: `step`, `forward`, `backward`, `optimizer` or `phase`.
        name: as the program gave it.
        label: what fits into a narrow mark: the number of a step or of a micro-batch.
    """

    kind: str
    name: str
    label: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Curves:
    """One device over time.

    Args:
        times: ns since 1970, ascending; numbers of entries where the history has no times.
        timed: whether they are times.
        categories: bytes in use of each category that is ever in use.
        reserved: bytes that the allocator has from CUDA.
        peak: position of the peak.
        ranges: what the program did, by start; the longest ones if there are many.
    """

    times: Ints
    timed: bool
    categories: dict[Category, Ints]
    reserved: Ints
    peak: int
    ranges: tuple[Range, ...]


def curves_of(memory: DeviceMemory, pieces: int = PIECES) -> Curves:
    """The curves of one device.

    Args:
        memory: of the device.
        pieces: of time; there are at most twice as many points, and the peak.
    """
    usage = memory.usage
    times = usage.time
    timed = bool(times[-1] > times[0])
    times = ints(np.maximum.accumulate(times) if timed else np.arange(len(times)))
    kept = _kept(times, usage.in_use, pieces)
    found = {
        one: over_time(memory.allocations, np.flatnonzero(memory.categories == number))[kept]
        for number, one in enumerate(CATEGORIES)
    }
    return Curves(
        times=times[kept],
        timed=timed,
        categories={one: values for one, values in found.items() if values.any()},
        reserved=usage.reserved[kept],
        peak=int(np.searchsorted(kept, usage.peak_entry + 1)),
        ranges=_ranges(memory, int(times[0]), int(times[-1])) if timed else (),
    )


def _kept(times: Ints, in_use: Ints, pieces: int) -> Ints:
    """Entries that stay: both ends, and of each piece of time the fullest and the emptiest one."""
    count = len(times)
    if count <= 2 * pieces:
        return ints(np.arange(count))
    bounds = np.linspace(times[0], times[-1], pieces + 1)[:-1]
    starts = np.unique(np.searchsorted(times, bounds))
    ends = np.append(starts[1:], count)
    kept = {0, count - 1, int(in_use.argmax())}
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        piece = in_use[start:end]
        kept |= {start + int(piece.argmax()), start + int(piece.argmin())}
    return ints(np.array(sorted(kept), dtype=np.int64))


def _mark(name: str) -> tuple[str, str, str] | None:
    """Kind, name and label of a range that tells where training was; None of any other, and of
    micro-batches."""
    step = marks_a_step(name, "user_annotation")
    if step is not None:
        return "step", name, f"step {step}"
    if name.startswith(_OPTIMIZER):
        return "optimizer", name, "optimizer"
    phase = phase_of(name)
    return None if phase is None else ("phase", name, phase)


def _ranges(memory: DeviceMemory, start: int, end: int) -> tuple[Range, ...]:
    found = [
        Range(*mark, max(begun, start), min(end if ended is None else ended, end))
        for mark, begun, ended in _marks(memory.snapshot.annotations)
    ]
    inside = sorted(
        (one for one in found if one.end > one.start), key=lambda one: one.start - one.end
    )
    return tuple(sorted(inside[:_MOST_RANGES], key=lambda one: (one.start, -one.end)))


def _marks(
    annotations: Sequence[Annotation],
) -> Iterator[tuple[tuple[str, str, str], int, int | None]]:
    """Marks with their begins and ends; a micro-batch that takes turns with another one is one."""
    passes = {(one.name, one.start): one for one in passes_of(annotations)}
    for one in annotations:
        if microbatch_span(one.name) is not None:
            turns = passes.pop((one.name, one.start), None)
            if turns is not None:
                label = "" if turns.number is None else str(turns.number)
                yield (turns.direction, turns.name, label), turns.start, turns.end
        elif (mark := _mark(one.name)) is not None:
            yield mark, one.start, one.end
