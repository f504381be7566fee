# SPDX-License-Identifier: Apache-2.0
"""Layers that are split unevenly over pipeline stages, by what modules tell.

In the steady state of 1F1B every stage takes as long as the slowest. Split evenly, each would take
the mean, so what the slowest takes more than that is what the split costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean

from megatron.torch_trace.analysis.findings.megatron_flags import flags, is_megatron
from megatron.torch_trace.analysis.findings.pipeline.stages import most_in_bubble
from megatron.torch_trace.analysis.findings.shares import milliseconds, severity
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding, RankResult
from megatron.torch_trace.analysis.results.stage_work import StageWork
from megatron.torch_trace.wording import percent

SLUG = "layer_imbalance"
_LEAST = 0.02
"""Of the iteration: less is within what one iteration differs from the next."""

_PARTS = ("layers_ns", "embedding_ns", "other_ns")
_CAUSES = {
    "layers_ns": "The layers of stage {stage} take",
    "embedding_ns": "The embedding of stage {stage} takes",
    "other_ns": "The work of stage {stage} outside of layers (output layer and loss, on the last "
    "stage) takes",
}

_SOME_STAGES = "Move layers to another stage {flags}; traces of all stages would tell how many."
_FIRST, _LAST = "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"
_EMBEDDING = "--account-for-embedding-in-pipeline-split"
_LOSS = "--account-for-loss-in-pipeline-split"


def rule(analysis: Analysis) -> Iterator[Finding]:
    """The stage with the most GPU work of modules, which the others wait for."""
    stages = analysis.stages
    iteration = analysis.summary.iteration_ns or analysis.summary.window_ns
    if len(stages) < 2 or not all(stage.layers for stage in stages) or not iteration:
        return
    if any(rank.unknown for rank in analysis.ranks if rank.modules):
        # What a stage lacks may be in the launches whose kernels are missing.
        return
    slow = max(stages, key=lambda stage: stage.total_ns)
    more = slow.total_ns - mean(stage.total_ns for stage in stages)
    share = more / iteration
    if share < _LEAST:
        return
    others = [stage for stage in stages if stage is not slow]
    differences = {
        part: getattr(slow, part) - mean(getattr(stage, part) for stage in others)
        for part in _PARTS
    }
    cause = max(_PARTS, key=lambda part: differences[part])
    advice, split = _advice(slow, analysis)
    yield Finding(
        SLUG,
        severity(share),
        f"Stage {slow.stage} has {milliseconds(slow.total_ns)} of GPU work in an iteration, "
        f"{milliseconds(more)} more than the mean of {len(stages)} stages. The other stages wait "
        f"{percent(share)} of the iteration for stage {slow.stage}. "
        f"{_CAUSES[cause].format(stage=slow.stage)} {milliseconds(differences[cause])} more than "
        "on the other stages.",
        {
            "stage": slow.stage,
            "more_than_mean_ns": more,
            "share": share,
            "better_split": list(split.layers) if split else None,
            "gain_ns": split.gain_ns if split else None,
            "stages": {
                stage.stage: {
                    "layers": len(stage.layers),
                    "total_ns": stage.total_ns,
                    **{part: getattr(stage, part) for part in _PARTS},
                }
                for stage in stages
            },
        },
        advice,
        share,
        most_in_bubble(analysis),
    )


def _depth(analysis: Analysis) -> int:
    """How many stages the pipeline has; as many as there are traces of, if they do not tell."""
    told = [one.stages or 0 for rank in analysis.ranks for one in rank.pipeline]
    return max(told, default=0) or len(analysis.stages)


def _advice(slow: StageWork, analysis: Analysis) -> tuple[str, _Split | None]:
    stages, ranks = analysis.stages, analysis.ranks
    if len(stages) != _depth(analysis):
        ways = ", ".join(f"`{flag}`" for flag in (_FIRST, _LAST, _EMBEDDING, _LOSS))
        return _SOME_STAGES.format(flags=flags(ranks, ways)), None
    split = max(_splits(stages, slow), key=lambda one: one.gain_ns, default=None)
    if split is None or split.gain_ns <= 0:
        return _another_number(slow, stages, ranks), None
    return _move(split, slow, stages, ranks), split


@dataclass(frozen=True, slots=True)
class _Split:
    """Layers of each stage, and how much shorter than now the slowest then is."""

    layers: tuple[int, ...]
    gain_ns: float


def _splits(stages: tuple[StageWork, ...], slow: StageWork) -> Iterator[_Split]:
    """What Megatron's flags can make of it: an end or both as wanted, the rest evenly."""
    total, count = sum(len(stage.layers) for stage in stages), len(stages)
    for few in range(1, total):
        first = [few] if slow is not stages[-1] else []
        last = [few] if slow is not stages[0] else []
        rest = count - len(first) - len(last)
        left = total - few * (count - rest)
        if rest and left > 0 and left % rest == 0:
            layers = (*first, *[left // rest] * rest, *last)
            yield _Split(layers, slow.total_ns - _slowest(stages, layers, _layer(slow)))


def _slowest(stages: tuple[StageWork, ...], layers: tuple[int, ...], layer_ns: float) -> float:
    return max(
        stage.total_ns + (count - len(stage.layers)) * layer_ns
        for stage, count in zip(stages, layers, strict=True)
    )


def _layer(stage: StageWork) -> float:
    return stage.layers_ns / len(stage.layers)


def _move(
    split: _Split, slow: StageWork, stages: tuple[StageWork, ...], ranks: Sequence[RankResult]
) -> str:
    first, last = f"`{_FIRST} {split.layers[0]}`", f"`{_LAST} {split.layers[-1]}`"
    saved = f"the slowest stage then takes {milliseconds(split.gain_ns)} less in an iteration"
    if slow is stages[-1]:
        counts = f"; `{_LOSS}` counts the loss as a layer" if is_megatron(ranks) else ""
        return f"Move layers to the other stages {flags(ranks, last)}: {saved}{counts}."
    if slow is stages[0]:
        counts = f"; `{_EMBEDDING}` counts the embedding as a layer" if is_megatron(ranks) else ""
        return f"Move layers to the other stages {flags(ranks, first)}: {saved}{counts}."
    both = flags(ranks, f"{first} with {last}")
    return f"Move layers to the first and the last stage {both}: {saved}."


def _another_number(
    slow: StageWork, stages: tuple[StageWork, ...], ranks: Sequence[RankResult]
) -> str:
    flag = {stages[-1].stage: _LOSS, stages[0].stage: _EMBEDDING}.get(slow.stage, _FIRST)
    evenly = f"that `{flag}` splits evenly" if is_megatron(ranks) else "that splits evenly"
    return (
        f"Choose a number of layers {evenly}, or fewer stages: a layer takes "
        f"{milliseconds(_layer(slow))} in an iteration, so moving one makes another stage the "
        "slowest."
    )
