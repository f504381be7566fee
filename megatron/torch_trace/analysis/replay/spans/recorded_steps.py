# SPDX-License-Identifier: Apache-2.0
"""The recorded ranks as stages of copies of the model, with the steps that all of them have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from megatron.torch_trace.analysis.communication.rank_calls import RankCalls
from megatron.torch_trace.analysis.replay.answers import UnreplayableError
from megatron.torch_trace.analysis.replay.spans.orders import Shape
from megatron.torch_trace.analysis.results.analysis import RankResult, StepResult
from megatron.torch_trace.analysis.timeline.command_line import has, value_of
from megatron.torch_trace.files.selection import listed

MOST_PASSES = 1 << 20
_UNEVEN = (
    "--pipeline-model-parallel-layout",
    "--decoder-first-pipeline-num-layers",
    "--decoder-last-pipeline-num-layers",
    "--account-for-embedding-in-pipeline-split",
    "--account-for-loss-in-pipeline-split",
    "--yaml-cfg",
    "--use-checkpoint-args",
)
"""With one of these the command line does not tell the layers of each stage."""
RECORD_SPANS = "record the micro-batches with --torch-profile-spans phases"


@dataclass(frozen=True, slots=True)
class Rank:
    """One recorded rank.

    Args:
        result, calls: its analysis and its collective calls.
        stage: of the pipeline.
        copy: which copy of the model.
    """

    result: RankResult
    calls: RankCalls
    stage: int
    copy: int

    def step(self, number: int) -> StepResult:
        """The step with this number, which must be there."""
        return next(one for one in self.result.steps if one.step == number)


@dataclass(frozen=True, slots=True)
class Recording:
    """All recorded ranks.

    Args:
        shape: of the pipeline.
        steps: numbers of the steps that all ranks have whole.
        ranks: the ranks.
        copies: which copies of the model have a recorded rank, ascending.
        layers: of each stage; None where nothing tells.
    """

    shape: Shape
    steps: tuple[int, ...]
    ranks: tuple[Rank, ...]
    copies: tuple[int, ...]
    layers: tuple[int, ...] | None

    def by_place(self) -> dict[tuple[int, int], list[Rank]]:
        """By copy and stage the recorded ranks, which differ in tp, cp and ep."""
        places = ((copy, stage) for copy in self.copies for stage in range(self.shape.stages))
        found: dict[tuple[int, int], list[Rank]] = {place: [] for place in places}
        for one in self.ranks:
            found.setdefault((one.copy, one.stage), []).append(one)
        return found


def recording_of(found: Iterable[tuple[RankResult, RankCalls]]) -> Recording:
    """Put ranks in their places.

    Raises:
        UnreplayableError: the traces do not tell of steps or micro-batches, or a stage is missing.
    """
    pairs = list(found)
    steps = _common_steps([result for result, _ in pairs])
    experts = 1 + max((result.coordinates.get("ep", 0) for result, _ in pairs), default=0)
    ranks = tuple(
        Rank(result, calls, _stage(result), result.coordinates.get("dp", 0) // experts)
        for result, calls in pairs
    )
    shape = _shape(ranks)
    recorded = {one.stage for one in ranks}
    missing = [str(stage) for stage in range(shape.stages) if stage not in recorded]
    if missing:
        raise UnreplayableError(
            f"no rank of pipeline stage {listed(missing)} was recorded; record a rank of every "
            "stage with --torch-profile-ranks tp=0,dp=0."
        )
    copies = tuple(sorted({one.copy for one in ranks}))
    return Recording(shape, steps, ranks, copies, _layers(ranks, shape))


def _common_steps(results: Sequence[RankResult]) -> tuple[int, ...]:
    whole = [one for one in results if one.recorded_iteration_ns is not None]
    if not whole or len(whole) < len(results):
        raise UnreplayableError("the traces do not have one whole step of all ranks.")
    common = set.intersection(*({step.step for step in one.steps} for one in whole))
    if not common:
        raise UnreplayableError("the ranks have no step in common.")
    return tuple(sorted(common))


def _stage(result: RankResult) -> int:
    if "pp" in result.coordinates:
        return result.coordinates["pp"]
    return result.pipeline[0].stage or 0 if result.pipeline else 0


def _shape(ranks: Sequence[Rank]) -> Shape:
    steps = [step for rank in ranks for step in rank.result.pipeline]
    known = {step.stages for step in steps if step.stages}
    stages = max(known, default=1)
    if not known and any(rank.stage for rank in ranks):
        raise UnreplayableError("the traces do not say how many stages the pipeline has.")
    microbatches = _most_common(step.microbatches for step in steps)
    chunks = _most_common(step.chunks for step in steps)
    rows = [row for rank in ranks for row in rank.result.microbatches if row.number is not None]
    if len({row.model for row in rows}) > 1:
        raise UnreplayableError(
            "several models train in the window, each with a schedule of its own."
        )
    if rows:
        # A first and a last stage may do without spans of the other chunks' forwards: none may.
        microbatches = len({row.number for row in rows})
        chunks = len({row.chunk for row in rows})
    if not microbatches or not chunks:
        raise UnreplayableError(f"the traces have no spans of micro-batches; {RECORD_SPANS}.")
    if microbatches * chunks * stages > MOST_PASSES:
        raise UnreplayableError(
            f"{stages} stages with {microbatches} micro-batches and {chunks} chunks are more than "
            "the graph of spans can hold."
        )
    return Shape(stages, chunks, microbatches)


def _most_common(values: Iterable[int | None]) -> int | None:
    counted = Counter(value for value in values if value)
    return counted.most_common(1)[0][0] if counted else None


def _layers(ranks: Sequence[Rank], shape: Shape) -> tuple[int, ...] | None:
    """Layers of each stage by the spans of modules, else by the command line's."""
    counted = {rank.stage: _layers_in(rank.result) for rank in ranks}
    if all(counted.get(stage) for stage in range(shape.stages)):
        return tuple(counted[stage] for stage in range(shape.stages))
    argv = next((rank.result.settings for rank in ranks if rank.result.settings), ())
    total = value_of(argv, "--num-layers") or ""
    if any(has(argv, flag) for flag in _UNEVEN) or not total.isdecimal():
        return None
    each, over = divmod(int(total), shape.stages)
    return (each,) * shape.stages if each and not over else None


def _layers_in(result: RankResult) -> int:
    found = set()
    for row in result.modules:
        parts = row.module.split(".")
        if len(parts) >= 2 and parts[-2] == "layers" and parts[-1].isdecimal():
            found.add(row.module)
    return len(found)
