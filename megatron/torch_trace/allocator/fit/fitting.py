# SPDX-License-Identifier: Apache-2.0
"""The largest micro-batch that fits, rank by rank, and what flags would free."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from megatron.torch_trace.allocator.fit.effects import Effect, effects_of
from megatron.torch_trace.allocator.fit.moments import Moments
from megatron.torch_trace.allocator.ranks.shape import RELEVANT, Shape
from megatron.torch_trace.allocator.ranks.stages import RankMemory

ASSUMED_OUTSIDE = 2 * 10**9
"""Bytes for CUDA's context, cuBLAS and NCCL where nothing tells them."""
_MOST = 1024
_TRIED = 4
"""Micro-batches whose need is told where nothing says what there is room for."""


@dataclass(frozen=True, slots=True)
class Need:
    """What some micro-batch needs.

    Args:
        micro_batch: its samples.
        bytes: that torch needs from CUDA: those in use at the peak and what it has beyond them.
        error: of it.
        peak_bytes: in use at the peak.
    """

    micro_batch: int
    bytes: int
    error: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class MeasuredRank:
    """A rank and what its memory would follow."""

    rank: RankMemory
    moments: Moments

    @property
    def shape(self) -> Shape | None:
        return self.rank.facts.shape


@dataclass(frozen=True, slots=True)
class RankFit:
    """What fits on one rank.

    Args:
        rank: which, as it was recorded.
        shape: of its part of the model.
        per_sample: bytes that a sample more in the micro-batch takes at the peak.
        measured_with: the other micro-batch that the slope was measured with; None where one run
            alone tells it.
        room: bytes that torch may have; None if the GPU's memory is unknown.
        needs: of the micro-batches that were tried, ascending; the recorded one first.
        largest: the largest one that fits, its error included; None if none does, or no room is
            known.
        perhaps: a larger one that fits without the error; None if there is none.
        effects: what flags would free.
    """

    rank: RankMemory
    shape: Shape
    per_sample: int
    measured_with: int | None
    room: int | None
    needs: tuple[Need, ...]
    largest: int | None
    perhaps: int | None
    effects: tuple[Effect, ...]


@dataclass(frozen=True, slots=True)
class Fit:
    """What fits in a run.

    Args:
        ranks: the fullest of each stage.
        outside: bytes that are set aside for what is not torch's.
        outside_is_assumed: nothing told them.
        largest, perhaps: over all ranks.
        measured: what another run that was given frees, by its arguments.
    """

    ranks: tuple[RankFit, ...]
    outside: int
    outside_is_assumed: bool
    largest: int | None
    perhaps: int | None
    measured: tuple[Effect, ...] = field(default=())

    @property
    def tightest(self) -> RankFit:
        """The rank that has least room left."""
        return max(self.ranks, key=lambda one: one.needs[0].bytes - (one.room or 0))


def fit_of(
    ranks: Sequence[MeasuredRank],
    others: Sequence[Sequence[MeasuredRank]] = (),
    outside: int | None = None,
) -> Fit | str:
    """What fits, or why nothing can be said.

    Args:
        ranks: of the run that is asked about.
        others: further runs, whose differences are measured.
        outside: bytes that are not torch's, where known.
    """
    fullest = _fullest(ranks)
    if any(one.shape is None for one in fullest):
        return (
            "no run.json of --torch-profile lies above the snapshots, and no trace beside them has "
            "a command line with --micro-batch-size."
        )
    taken = ASSUMED_OUTSIDE if outside is None else outside
    slopes = {number: slope for run in others for number, slope in _slopes(fullest, run).items()}
    fits = [_rank_fit(one, taken, slopes.get(number)) for number, one in enumerate(fullest)]
    known = all(one.room is not None for one in fits)
    return Fit(
        ranks=tuple(fits),
        outside=taken,
        outside_is_assumed=outside is None,
        largest=_of_all(fits, lambda one: one.largest) if known else None,
        perhaps=_of_all(fits, lambda one: one.perhaps or one.largest) if known else None,
        measured=tuple(effect for run in others for effect in _measured(fullest, run)),
    )


def _of_all(fits: Sequence[RankFit], wanted: Callable[[RankFit], int | None]) -> int | None:
    found = [wanted(one) for one in fits]
    return None if None in found else min(one for one in found if one is not None)


def _fullest(ranks: Sequence[MeasuredRank]) -> list[MeasuredRank]:
    """Of each stage the rank with the largest peak."""
    found: dict[int, MeasuredRank] = {}
    for one in sorted(ranks, key=lambda one: -one.rank.answer.peak_bytes):
        found.setdefault(one.rank.facts.stage or 0, one)
    return [found[stage] for stage in sorted(found)]


def _rank_fit(one: MeasuredRank, outside: int, slope: tuple[int, int] | None) -> RankFit:
    shape, capacity = one.shape, one.rank.facts.capacity
    assert shape is not None
    room = None if capacity is None else max(0, capacity - outside)
    needs = []
    for micro_batch in _candidates(shape):
        need = _need(one, shape, micro_batch, slope)
        needs.append(need)
        if len(needs) == _TRIED if room is None else need.bytes - need.error > room:
            break
    fitting = [need for need in needs if room is not None and need.bytes + need.error <= room]
    nearly = [need for need in needs if room is not None and need.bytes <= room]
    largest = max((need.micro_batch for need in fitting), default=None)
    perhaps = max((need.micro_batch for need in nearly), default=None)
    moments = one.moments
    own = int((moments.scaling[moments.peak]) // shape.micro_batch)
    return RankFit(
        rank=one.rank,
        shape=shape,
        per_sample=slope[0] if slope else own,
        measured_with=slope[1] if slope else None,
        room=room,
        needs=tuple(needs),
        largest=largest,
        perhaps=perhaps if perhaps != largest else None,
        effects=effects_of(moments, shape),
    )


def _candidates(shape: Shape) -> Iterator[int]:
    """The recorded micro-batch, then larger ones that divide the batch of a replica."""
    yield shape.micro_batch
    replicas = shape.data // shape.context if shape.data else 0
    share = shape.global_batch // replicas if shape.global_batch and replicas else 0
    for size in range(shape.micro_batch + 1, _MOST + 1):
        if share and size > share:
            return
        if not share or share % size == 0:
            yield size


def _need(one: MeasuredRank, shape: Shape, micro_batch: int, slope: tuple[int, int] | None) -> Need:
    """By what grows with the micro-batch at every moment that could be the peak."""
    moments, answer = one.moments, one.rank.answer
    more = micro_batch / shape.micro_batch - 1
    now, then = shape.in_flight(), shape.in_flight(micro_batch)
    # Fewer micro-batches are kept where an iteration has fewer than the pipeline would keep.
    dropped = (1 - then / now) * (more + 1) if now and then else 0.0
    unused = max(0, answer.peak_reserved - answer.peak_bytes)
    likely = moments.in_use + more * moments.scaling - dropped * moments.layers
    in_use, upper = int(likely.max()), int((likely + more * moments.unsure).max())
    error = upper - in_use + round(unused * max(0.0, more))
    if slope is not None:
        line = answer.peak_bytes + slope[0] * (micro_batch - shape.micro_batch)
        return Need(micro_batch, line + unused, abs(line - in_use), line)
    return Need(micro_batch, in_use + unused, error, in_use)


def _slopes(
    fullest: Sequence[MeasuredRank], other: Sequence[MeasuredRank]
) -> dict[int, tuple[int, int]]:
    """Bytes of a sample from two runs that differ in nothing but the micro-batch."""
    found = {}
    for number, one, there in _pairs(fullest, other):
        mine, its = one.shape, there.shape
        if mine and its and differences(one, there).keys() == {"micro_batch_size"}:
            change = there.rank.answer.peak_bytes - one.rank.answer.peak_bytes
            found[number] = (
                change // (its.micro_batch - mine.micro_batch),
                its.micro_batch,
            )
    return found


def _measured(fullest: Sequence[MeasuredRank], other: Sequence[MeasuredRank]) -> Iterator[Effect]:
    """What the arguments of the other run free on the fullest rank of this one."""
    pairs = list(_pairs(fullest, other))
    if not pairs:
        return
    _, one, there = max(pairs, key=lambda pair: pair[1].rank.answer.peak_bytes)
    changed = differences(one, there)
    if not changed:
        return
    freed = [a.rank.answer.peak_bytes - b.rank.answer.peak_bytes for _, a, b in pairs]
    mine = one.rank.answer.peak_bytes - there.rank.answer.peak_bytes
    words = ", ".join(f"{name} {old} -> {new}" for name, (old, new) in changed.items())
    spread = max(freed) - min(freed) if len(freed) > 1 else None
    over = f"{len(freed)} stages, which differ by the error" if len(freed) > 1 else "one rank"
    yield Effect(words, mine, spread, f"measured: the peaks of two runs, on {over}")


def differences(one: MeasuredRank, there: MeasuredRank) -> dict[str, tuple[object, object]]:
    """Arguments that decide over memory and are not the same: name -> this run's, the other's."""
    mine, its = one.rank.facts.arguments, there.rank.facts.arguments
    return {
        name: (mine.get(name), its.get(name))
        for name in RELEVANT
        if mine.get(name) != its.get(name)
    }


def _pairs(
    fullest: Sequence[MeasuredRank], other: Sequence[MeasuredRank]
) -> Iterator[tuple[int, MeasuredRank, MeasuredRank]]:
    stages = {one.rank.facts.stage or 0: one for one in _fullest(other)}
    for number, one in enumerate(fullest):
        there = stages.get(one.rank.facts.stage or 0)
        if there is not None:
            yield number, one, there
