# SPDX-License-Identifier: Apache-2.0
"""The answer of a comparison in words: longer or shorter, who is late, which part grew."""

from __future__ import annotations

from collections.abc import Sequence

from megatron.torch_trace.analysis.compare.comparison import Comparison, Lateness
from megatron.torch_trace.analysis.compare.different_work import (
    BYTES,
    FLOPS,
    KERNELS,
    WorkAmount,
)
from megatron.torch_trace.analysis.compare.statistics import STEPS, Difference
from megatron.torch_trace.format.breakdown_parts import BREAKDOWN_PARTS
from megatron.torch_trace.report.comparison.words import pair, part_name, relative, signed
from megatron.torch_trace.wording import count, counted, duration, number, percent, size

_LEAST_SHARE = 0.001
_MOST_AMOUNTS = 3


def answer(comparison: Comparison) -> list[str]:
    """One sentence or two for each thing worth knowing, the most important first."""
    return [
        _iteration(comparison.iteration),
        *_work(comparison.different_work),
        _undisturbed(comparison.undisturbed),
        *_straggler(comparison),
        *_parts(comparison),
    ]


def _iteration(one: Difference) -> str:
    change = one.change
    if change is None or one.before is None or one.after is None:
        return "The time of an iteration is unknown on one side."
    if abs(change) < _LEAST_SHARE * one.before:
        return f"An iteration takes as long in B as in A ({_times(one)})."
    moved = f"{_times(one)}, {relative(one)}"
    word = "longer" if change > 0 else "less"
    return f"An iteration takes {duration(abs(change))} {word} in B ({moved}); {_noise(one)}."


def _work(amounts: Sequence[WorkAmount]) -> list[str]:
    """What is compared is not the same, so a difference in time may be no gain."""
    if not amounts:
        return []
    told = [_AMOUNTS[one.kind](one) for one in amounts[:_MOST_AMOUNTS]]
    more = len(amounts) - len(told)
    others = f", and {counted(more, 'other amount')} differ" if more else ""
    return [
        f"A and B do not do the same work in an iteration: {'; '.join(told)}{others}. A difference "
        "in time may come from that alone."
    ]


def _flops(one: WorkAmount) -> str:
    return f"the model computes {pair(*map(_tera, (one.before, one.after)))} TFLOP"


def _kernels(one: WorkAmount) -> str:
    return f"a rank runs {pair(count(one.before), count(one.after))} {one.of} kernels"


def _bytes(one: WorkAmount) -> str:
    return f"a rank sends {pair(size(one.before), size(one.after))} in {one.of}"


def _tera(flops: float) -> str:
    return number(flops / 1e12)


_AMOUNTS = {FLOPS: _flops, KERNELS: _kernels, BYTES: _bytes}


def _undisturbed(one: Difference) -> str:
    """What of the change is no doing of the profiler."""
    if one.before is None or one.after is None:
        sides = " and ".join(
            side for side, ns in (("A", one.before), ("B", one.after)) if ns is None
        )
        return f"How long an iteration takes without the profiler is unknown in {sides}."
    change = one.after - one.before
    if abs(change) < _LEAST_SHARE * one.before:
        return f"The undisturbed iteration takes as long in B as in A ({_times(one)})."
    moved = f"{_times(one)}, {relative(one)}"
    much = f"{duration(abs(change))} {'longer' if change > 0 else 'less'}"
    return f"The undisturbed iteration takes {much} in B ({moved})."


def _times(one: Difference) -> str:
    return pair(duration(one.before), duration(one.after))


def _noise(one: Difference) -> str:
    samples = " and ".join(map(str, one.samples))
    what = "steps" if one.over == STEPS else "ranks"
    if one.significant is None:
        return "one step on each side cannot show whether this is noise"
    if one.significant:
        return f"this is more than the noise of {samples} {what} ({_chance(one.p or 0.0)})"
    return (
        f"this may be noise: with {samples} {what} the 95 % interval is {signed(one.low)} to "
        f"{signed(one.high)} ms"
    )


def _chance(p: float) -> str:
    """`p = 0.013`, `p < 0.001`: no exponent in a sentence."""
    return f"p = {p:.2g}" if p >= 0.001 else "p < 0.001"


def _straggler(comparison: Comparison) -> list[str]:
    before, after = comparison.straggler_before, comparison.straggler_after
    rows = {row.rank: row for row in comparison.stragglers}
    if after is None and before is None:
        return []
    if after is None or after not in rows:
        return [f"No rank is late in B. Rank {before} is late in A."]
    row = rows[after]
    text = (
        f"Rank {after} is late in B: in an iteration each of the other ranks waits "
        f"{duration(row.after)} for rank {after}{_where(row)}, {_share(row, comparison)}"
    )
    if before == after:
        return [f"{text}. Rank {after} is late in A too, by {duration(row.before)}."]
    in_a = "" if row.before is None else f"; {duration(row.before)} in A"
    if before is None or before not in rows:
        return [f"{text}{in_a}. No rank is late in A."]
    return [f"{text}{in_a}. Rank {before} is late in A, by {duration(rows[before].before)}."]


def _where(row: Lateness) -> str:
    return f" (mostly in {row.mostly})" if row.mostly else ""


def _share(row: Lateness, comparison: Comparison) -> str:
    whole = comparison.iteration.after
    return (
        f"{percent((row.after or 0.0) / whole)} of the iteration" if whole else "of the iteration"
    )


def _parts(comparison: Comparison) -> list[str]:
    """The parts by how much they changed, as far as that matters."""
    whole = comparison.iteration.before
    if not whole:
        return []
    changes = {part: comparison.breakdown[part].change for part in BREAKDOWN_PARTS}
    told = [
        (abs(change), f"{part_name(part)} {signed(change)} ms")
        for part, change in changes.items()
        if change is not None and abs(change) >= 5 * _LEAST_SHARE * whole
    ]
    if not told:
        return []
    names = ", ".join(text for _, text in sorted(told, reverse=True))
    dimensions = [
        (abs(one.change), f"{name} {signed(one.change)} ms")
        for name, one in comparison.dimensions.items()
        if one.change is not None and abs(one.change) >= 5 * _LEAST_SHARE * whole
    ]
    by = ", ".join(text for _, text in sorted(dimensions, reverse=True))
    of = f" Exposed communication by dimension: {by}." if by else ""
    return [f"Changes in an iteration: {names}.{of}"]
