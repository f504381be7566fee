# SPDX-License-Identifier: Apache-2.0
"""Which time of a trace is meant by steps and by times from its start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from megatron.torch_trace.columns.block_times import block_times
from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.format.step_names import MENTION, marks_a_step
from megatron.torch_trace.format.times import NO_TIME
from megatron.torch_trace.reader import ByteStream, EventBlock, SlimEvent, Trace
from megatron.torch_trace.reader.cutter import Cutter
from megatron.torch_trace.reader.event import Identity
from megatron.torch_trace.rewrite.selection import Selection
from megatron.torch_trace.rewrite.slim.block_slim import Ranges
from megatron.torch_trace.wording import duration


@dataclass(frozen=True, slots=True)
class StepRange:
    """A `ProfilerStep#` annotation of the CPU: number, start and end in ns as in the file."""

    number: int
    start: int
    end: int


def find_steps(path: Path | str) -> list[StepRange]:
    """The steps of a trace, in order. Decodes only the blocks that mention one.

    Each ends where the next one starts, the last one with its annotation. A number that comes again
    is another step, as in an analysis; of a merged trace the first process counts.
    """
    found: dict[Identity, list[StepRange]] = {}
    for raw in Cutter(ByteStream(path)):
        if MENTION.encode() not in raw.text:
            continue
        block: EventBlock[SlimEvent] = EventBlock(raw, SlimEvent)
        ts, dur = block_times(block)
        for index, event in enumerate(block.events):
            number = marks_a_step(event.name, event.cat) if event.ph == "X" else None
            if number is not None and ts[index] != NO_TIME:
                start = int(ts[index])
                end = start + max(0, int(dur[index]))
                found.setdefault(event.pid, []).append(StepRange(number, start, end))
    steps: list[StepRange] = []
    for step in sorted(next(iter(found.values()), []), key=lambda one: (one.start, -one.end)):
        if not steps or step.end > steps[-1].end:
            steps.append(step)
    following = steps[1:]
    ended = [replace(step, end=after.start) for step, after in zip(steps, following)]  # noqa: B905
    return ended + steps[-1:]


def step_ranges(path: Path | str, wanted: frozenset[int]) -> Ranges:
    """The times of steps.

    Raises:
        UsageError: one of them is not in the trace.
    """
    steps = find_steps(path)
    numbers = {step.number for step in steps}
    missing = sorted(wanted - numbers)
    if missing:
        has = (
            f"the trace has {', '.join(map(str, sorted(numbers)))}"
            if steps
            else "the trace has no steps"
        )
        raise UsageError(f"--step {missing[0]}: {path} has no ProfilerStep#{missing[0]}; {has}.")
    return tuple((step.start, step.end) for step in steps if step.number in wanted)


def time_range(path: Path | str, selection: Selection, *, workers: int = 1) -> Ranges:
    """The time between `--from` and `--to`, which count from the start of the earliest slice.

    Raises:
        UsageError: the trace ends before it.
    """
    start, end = find_span(path, workers=workers)
    low = start + (selection.start_ns or 0)
    if start < end <= low:
        raise UsageError(
            f"--from {duration(selection.start_ns)}: {path} ends {duration(end - start)} after its "
            "first event; give an earlier time."
        )
    return ((low, start + selection.end_ns if selection.end_ns is not None else 1 << 62),)


def _span_of_block(block: EventBlock[SlimEvent]) -> tuple[int, int] | None:
    ts, dur = block_times(block)
    slices = [
        (int(start), int(start) + max(0, int(length)))
        for event, start, length in zip(block.events, ts, dur, strict=True)
        if event.ph == "X" and start != NO_TIME and start > 0
    ]
    if not slices:
        return None
    return min(start for start, _ in slices), max(end for _, end in slices)


def find_span(path: Path | str, *, workers: int = 1) -> tuple[int, int]:
    """Start of the earliest slice and end of the latest, in ns as in the file; 0 for no slice."""
    found = Trace(path).map(_span_of_block, SlimEvent, workers=workers, small_results=True)
    spans = [span for span in found if span is not None]
    if not spans:
        return 0, 0
    return min(start for start, _ in spans), max(end for _, end in spans)
