# SPDX-License-Identifier: Apache-2.0
"""Whether the GPU's rows are on the CPU's clock.

Work begins after the call that launches it, and a call that waits for the device returns after the
work that it waits for has begun. Where that is not so, tracers have mapped the two clocks wrongly,
by microseconds to hours:

    CPU      launch [-)       launch [-)                wait [-----)
    GPU                  ##              ##  right
    GPU  ##             ##                   behind: begins before its launch
    GPU                                            ahead: begins after the wait for it  ##       ##

Traces that a tool has cut may hold the launches of work that queued behind other work, which was
cut away. Such work begins late too, but it follows without pauses and lasts longer than its
launches did:

    CPU      launch [-) [-) [-) [-)
    GPU      (work that is not in the trace)                            ########################
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.format.integer_arrays import Ints
from megatron.torch_trace.wording import counted, duration

NOISE_NS = 5_000
"""Mapping a clock to another errs by a microsecond; a launch takes longer than this to arrive."""
_FEW = 0.05
_LEAST_ROWS = 3
"""Fewer rows that begin too early are odd rows, not another clock."""
_APART_NS = 10_000_000
"""GPU work that is launched and has nothing before it begins long before that."""
_LATE_NS = 1_000_000
"""Work that a GPU with nothing to do begins so long after its launch, every time."""
_ALIKE_NS = 50_000
"""Launches take as long as each other; work that queues waits now longer, now shorter."""
_PAUSED_ROWS = 10
_LEAST_PAUSES = 0.05
_MOST_QUEUE_NS = 10_000_000_000
"""No queue is longer: a stream takes about a thousand launches."""
_MOST_PAUSES = 0.01
"""Of the time of work that queues; a kernel follows another in about a microsecond."""
_SLOWER = 2
"""Work that its launches ran ahead of lasts longer than they did by at least this factor."""


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """The GPU's rows are on another clock.

    Args:
        offset_ns: the least that the GPU's clock must differ; negative if it is behind.
        rows: GPU rows that cannot be where they are; of: those whose launch is known.
        is_late: they begin late though the GPU was free.
    """

    offset_ns: int
    rows: int
    of: int
    is_late: bool = False

    @property
    def sentence(self) -> str:
        """The fact, without a full stop."""
        apart = duration(abs(self.offset_ns))
        if self.offset_ns < 0:
            seen = (
                f"{self.rows:,} of {counted(self.of, 'GPU row')} begin before the call that "
                "launched them"
            )
        else:
            seen = f"{counted(self.rows, 'GPU row')} begin after the CPU had waited for them"
            if self.is_late:
                seen = f"{counted(self.rows, 'GPU row')} begin late though the GPU was free"
            elif not self.rows:
                seen = "the GPU's rows begin after everything else has ended"
        return f"{seen}: the GPU is on another clock than the CPU, {apart} or more apart"


def find_offset(
    launched: Ints,
    started: Ints,
    ended: Ints,
    stream: Ints,
    waits: tuple[Ints, Ints],
    apart: int,
) -> ClockOffset | None:
    """How far the GPU's clock must be off at least; None if nothing says that it is.

    Args:
        launched, started, ended, stream: of the GPU rows whose launch is known.
        waits: starts and ends of the calls that wait for the whole device; none in a process with
            several devices, where a call waits for one of them only.
        apart: from the end of the CPU's last event to the start of the first GPU row, ns.
    """
    return (
        _behind(launched, started, stream)
        or _ahead(launched, started, waits, apart)
        or _always_late(launched, started, ended)
    )


def apart_from_cpu(start: Ints, end: Ints, launched: Ints, cpu_end: int | None) -> int:
    """From the CPU's last event to the first GPU row, in ns; 0 if the rows may have queued so long.

    Args:
        start, end: of all GPU rows.
        launched: when those were launched whose launch is known.
        cpu_end: the last end of a call or an operator; None without any.
    """
    if not len(start) or cpu_end is None:
        return 0
    first, last = int(start.min()), int(end.max())
    if len(launched) and first - cpu_end < _MOST_QUEUE_NS:
        ahead = last - first > _SLOWER * (cpu_end - int(launched.min()))
        if ahead and _pauses(start, end) <= _MOST_PAUSES * (last - first):
            return 0
    return first - cpu_end


def _pauses(start: Ints, end: Ints) -> int:
    """For how long nothing runs between the first start and the last end."""
    order = np.argsort(start, kind="stable")
    pauses = start[order][1:] - np.maximum.accumulate(end[order])[:-1]
    return int(pauses[pauses > 0].sum())


def _behind(launched: Ints, started: Ints, stream: Ints) -> ClockOffset | None:
    delay = started - launched
    early = delay < -NOISE_NS
    count = int(early.sum())
    if count < min(_LEAST_ROWS, len(delay)) or not count:
        return None
    # One stream may be on a clock of its own, however little runs on it.
    _, code = np.unique(stream, return_inverse=True)
    of_stream = np.bincount(code)
    early_there = np.bincount(code[early], minlength=len(of_stream))
    own_clock = (early_there >= _LEAST_ROWS) & (early_there * 2 > of_stream)
    if count <= _FEW * len(delay) and not own_clock.any():
        return None
    # The work that had to wait least shows most of the offset; a single row may be damaged.
    least = np.quantile(delay[early], 0.01, method="higher")
    return ClockOffset(int(least), int((delay < 0).sum()), len(delay))


def _ahead(
    launched: Ints, started: Ints, waits: tuple[Ints, Ints], apart: int
) -> ClockOffset | None:
    if len(launched) and len(waits[0]):
        order = np.argsort(launched, kind="stable")
        last = np.maximum.accumulate(started[order])
        before = np.searchsorted(launched[order], waits[0], side="left") - 1
        too_late = last[before] - waits[1]
        wrong = (too_late > NOISE_NS) & (before >= 0)
        if int(wrong.sum()) * 2 > int((before >= 0).sum()):
            return ClockOffset(
                int(np.median(too_late[wrong])),
                _waited_for(launched, started, waits),
                len(launched),
            )
    if apart > _APART_NS:
        return ClockOffset(apart, 0, len(launched))
    return None


def _always_late(launched: Ints, started: Ints, ended: Ints) -> ClockOffset | None:
    """Work for which the GPU was free, and which began long after its launch without exception."""
    order = np.argsort(started, kind="stable")
    pauses = started[order][1:] - np.maximum.accumulate(ended[order])[:-1]
    late = (started - launched)[order][1:][pauses > NOISE_NS]
    if len(late) < _PAUSED_ROWS or int(late.min()) < _LATE_NS:
        return None
    if np.median(late) - late.min() > _ALIKE_NS:
        return None
    length = int(ended.max()) - int(started.min())
    if int(pauses[pauses > 0].sum()) < _LEAST_PAUSES * length:
        return None
    return ClockOffset(int(late.min()), len(launched), len(launched), is_late=True)


def _waited_for(launched: Ints, started: Ints, waits: tuple[Ints, Ints]) -> int:
    """How many rows begin after a call has returned that was to wait for them."""
    order = np.argsort(waits[0], kind="stable")
    # The earliest end of each call and those that follow; at the end one that never returns.
    ends = np.minimum.accumulate(waits[1][order][::-1])[::-1]
    ends = np.append(ends, np.iinfo(np.int64).max)
    return int((started > ends[np.searchsorted(waits[0][order], launched, side="right")]).sum())
