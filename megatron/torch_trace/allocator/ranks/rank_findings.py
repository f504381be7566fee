# SPDX-License-Identifier: Apache-2.0
"""What only several ranks, or the size of the GPU, can tell of memory: one rule, one function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import median_low

from megatron.torch_trace.allocator.answer import MemoryAnswer
from megatron.torch_trace.allocator.findings import MemoryFinding, flags, memory_findings
from megatron.torch_trace.allocator.purpose.categories import Category
from megatron.torch_trace.allocator.ranks.headroom import unused_headroom
from megatron.torch_trace.allocator.ranks.rank_facts import facts_of
from megatron.torch_trace.allocator.ranks.stages import RankMemory, name_of, stages_of
from megatron.torch_trace.wording import size

_UNEVEN = 0.10
"""Of the fullest rank's peak: so much less in another one is uneven."""
_LEAST = 1 << 28
_SEVERITIES = ("high", "medium", "low")


def rank_memories(
    answers: Sequence[MemoryAnswer], capacity: int | None = None
) -> tuple[RankMemory, ...]:
    """Answers with what is known of them.

    Args:
        answers: one for each device.
        capacity: bytes of a GPU, if the user says so.
    """
    found = []
    for one in answers:
        facts = facts_of(one)
        if capacity is not None:
            facts = replace(facts, capacity=capacity)
        found.append(RankMemory(one, facts))
    return tuple(found)


def findings_of_all(ranks: Sequence[RankMemory]) -> tuple[MemoryFinding, ...]:
    """Of all ranks, the worst first; of what several have the worst one says how many."""
    own: dict[str, list[tuple[RankMemory, MemoryFinding]]] = {}
    for one in ranks:
        for found in memory_findings(one.answer, megatron=one.megatron):
            own.setdefault(found.code, []).append((one, found))
    together = [_one_for_all(found, len(ranks)) for found in own.values()]
    return tuple(
        sorted(
            [*together, *findings_between(ranks)],
            key=lambda one: _SEVERITIES.index(one.severity),
        )
    )


def findings_between(ranks: Sequence[RankMemory]) -> tuple[MemoryFinding, ...]:
    """What is wrong with the ranks as a whole."""
    return tuple(one for rule in _RULES for one in rule(ranks))


def _one_for_all(found: Sequence[tuple[RankMemory, MemoryFinding]], ranks: int) -> MemoryFinding:
    """The finding of the fullest of the ranks that have it."""
    rank, worst = max(found, key=lambda one: one[0].answer.peak_bytes)
    if ranks == 1:
        return worst
    others = len(found) - 1
    whose = name_of(rank) + (f", and {others} more" if others else "")
    numbers = [one.answer.rank for one, _ in found]
    return MemoryFinding(
        worst.code,
        worst.severity,
        f"{worst.sentence} ({whose})",
        worst.advice,
        {**worst.evidence, "ranks": numbers},
    )


def _uneven_stages(ranks: Sequence[RankMemory]) -> Iterator[MemoryFinding]:
    stages = stages_of(ranks)
    if not stages:
        return
    peaks = [one.fullest.answer.peak_bytes for one in stages]
    if not _is_uneven(peaks):
        return
    full, empty = stages[peaks.index(max(peaks))], stages[peaks.index(min(peaks))]
    category, more = _most_different(full.fullest.answer, empty.fullest.answer)
    yield MemoryFinding(
        "memory_imbalance",
        "medium",
        f"Stage {full.stage} peaks at {size(max(peaks))}, stage {empty.stage} at "
        f"{size(min(peaks))}; {size(more)} of the difference are {category.words}.",
        _stage_advice(category, megatron=full.fullest.megatron),
        {
            "peak_bytes": {one.stage: peak for one, peak in zip(stages, peaks, strict=True)},
            "category": category.value,
            "category_bytes": more,
        },
    )


def _stage_advice(category: Category, *, megatron: bool) -> str:
    layout = "`--pipeline-model-parallel-layout`"
    if category is Category.ACTIVATIONS:
        fewer = flags(f"`--decoder-first-pipeline-num-layers`, {layout}", megatron=megatron)
        more = flags("`--recompute-granularity`", megatron=megatron)
        return (
            "In 1F1B a stage keeps the activations of as many micro-batches as there are stages "
            f"from it to the end: give the first stages fewer layers {fewer}, or recompute more "
            f"{more}."
        )
    counted = flags(
        "`--account-for-embedding-in-pipeline-split`, `--account-for-loss-in-pipeline-split`",
        megatron=megatron,
    )
    return (
        f"Count the embedding and the loss as layers {counted}, or place the layers by hand "
        f"{flags(layout, megatron=megatron)}."
    )


def _uneven_ranks(ranks: Sequence[RankMemory]) -> Iterator[MemoryFinding]:
    """Ranks that should be alike: of one stage, or all where there are no stages."""
    groups = [one.ranks for one in stages_of(ranks)]
    if not groups and len(ranks) > 1 and all(one.facts.stage in (None, 0) for one in ranks):
        groups = [tuple(sorted(ranks, key=lambda one: -one.answer.peak_bytes))]
    uneven = [one for one in groups if _is_uneven([rank.answer.peak_bytes for rank in one])]
    if not uneven:
        return
    group = max(uneven, key=lambda one: one[0].answer.peak_bytes - one[-1].answer.peak_bytes)
    typical = median_low(one.answer.peak_bytes for one in group)
    peak = group[0].answer.peak_bytes
    category, more = _most_different(group[0].answer, group[-1].answer)
    stage = group[0].facts.stage
    of_stage = f" of stage {stage}" if stage is not None and stages_of(ranks) else ""
    yield MemoryFinding(
        "uneven_ranks",
        "medium",
        f"{name_of(group[0]).capitalize()} peaks at {size(peak)}, {name_of(group[-1])}{of_stage} "
        f"at {size(group[-1].answer.peak_bytes)} (median {size(typical)}); {size(more)} of the "
        f"difference are {category.words}.",
        "Ranks of one stage should hold the same: with experts, balance the tokens "
        f"{flags('`--moe-aux-loss-coeff`', megatron=group[0].megatron)} or bound them "
        f"{flags('`--moe-expert-capacity-factor`', megatron=group[0].megatron)}; else look for "
        "what only this rank does, such as logging or gathering.",
        {
            "peak_bytes": {one.answer.rank: one.answer.peak_bytes for one in group},
            "category": category.value,
            "category_bytes": more,
        },
    )


def _is_uneven(peaks: Sequence[int]) -> bool:
    difference = max(peaks) - min(peaks)
    return difference >= _LEAST and difference >= _UNEVEN * max(peaks)


def _most_different(full: MemoryAnswer, empty: MemoryAnswer) -> tuple[Category, int]:
    more = {one: held - empty.categories.get(one, 0) for one, held in full.categories.items()}
    category = max(more, key=lambda one: more[one])
    return category, more[category]


_RULES: tuple[Callable[[Sequence[RankMemory]], Iterator[MemoryFinding]], ...] = (
    _uneven_stages,
    _uneven_ranks,
    unused_headroom,
)
