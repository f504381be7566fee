# SPDX-License-Identifier: Apache-2.0
"""What a flag would free at the peak, with its error, or why the data does not say it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from megatron.torch_trace.allocator.fit.formulas import (
    ACTIVATIONS,
    OPTIMIZER,
    LayerFormula,
    layer_formula,
    layer_parameters,
)
from megatron.torch_trace.allocator.fit.moments import Moments
from megatron.torch_trace.allocator.ranks.shape import Shape
from megatron.torch_trace.format.integer_arrays import Ints
from megatron.torch_trace.wording import percent, size

_WORST_FORMULA = 0.30
_PADDING = 0.02
"""Of a shard: buckets are padded to equal shares."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What a change of flags frees on one rank.

    Args:
        change: the flags.
        frees: bytes at the peak; negative if it needs more. None where the data does not say.
        error: of it, bytes; None where nothing bounds it.
        how: measured or formula, with its source; or why it is unknown.
    """

    change: str
    frees: int | None
    error: int | None
    how: str


@dataclass(frozen=True, slots=True)
class Layers:
    """A rank's transformer layers at the moment with most of their activations.

    Args:
        count: layers times micro-batches whose activations are kept.
        marked: whether marks of micro-batches told it; else 1F1B's formula.
        each: bytes of one.
        core: of these, core attention's.
        formula: of this model as it runs.
    """

    count: int
    marked: bool
    each: float
    core: float
    formula: LayerFormula

    @property
    def mismatch(self) -> float:
        """By how much the formula is off, as a share."""
        return abs(self.each / self.formula.whole - 1) if self.formula.whole else 1.0


def layers_of(moments: Moments, shape: Shape) -> Layers | str:
    """The layers, or why nothing is known of them."""
    here = shape.layers_here
    if here is None:
        return "how many layers the stage has is unknown"
    at = moments.deepest
    total = int(moments.layers[at])
    if not total:
        return "no stack of a transformer layer is in the history"
    begun = 1 if shape.pipeline == 1 else int(moments.begun[at])
    if begun > 0:
        count, marked = max(1, here * begun // shape.virtual), shape.pipeline > 1
    elif (kept := shape.in_flight()) is not None:
        count, marked = here * kept, False
    else:
        return "how many micro-batches are kept is unknown: no marks tell it"
    each, core = total / max(1, count), int(moments.core[at]) / max(1, count)
    formula = layer_formula(shape, fused=False)
    if formula is None:
        return "the formula is of dense layers whose sizes are known"
    if core < formula.core / 2:
        formula = layer_formula(shape, fused=True)
        assert formula is not None
    return Layers(count, marked, each, core, formula)


def effects_of(moments: Moments, shape: Shape) -> tuple[Effect, ...]:
    """Every change that is not made already."""
    layers = layers_of(moments, shape)
    found = [one for rule in _RULES if (one := rule(moments, shape, layers)) is not None]
    elsewhere = moments.layers[moments.peak] < moments.layers[moments.deepest]
    return tuple(
        replace(one, how=f"{one.how}; the peak is at another moment")
        if one.frees == 0 and elsewhere
        else one
        for one in found
    )


def _at_peak(moments: Moments, freed: float, column: Ints) -> int:
    """What the peak loses where so much of a column's most is freed: another moment may be next."""
    most = int(column.max())
    share = min(1.0, max(0.0, freed) / most) if most else 0.0
    return int(moments.in_use.max()) - int((moments.in_use - share * column).max())


def _selective(moments: Moments, shape: Shape, layers: Layers | str) -> Effect | None:
    change = "--recompute-activations"
    if shape.recompute:
        return None
    if shape.recompute is None or isinstance(layers, str):
        return Effect(change, None, None, _unsaid(layers))
    # The output of core attention is the input of the projection, and stays.
    output = 2 * layers.formula.unit / shape.tensor
    each = max(0.0, layers.core - output)
    if each < 0.01 * layers.each:
        return Effect(change, 0, round(layers.core), "measured: core attention keeps nothing large")
    return Effect(
        change,
        _at_peak(moments, each * (layers.count - 1), moments.layers),
        round(layers.core),
        f"measured: core attention keeps {size(each)} a layer and micro-batch; 5as^2b/t is "
        f"{size(layers.formula.core)} ({ACTIVATIONS})",
    )


def _full(moments: Moments, shape: Shape, layers: Layers | str) -> Effect | None:
    change = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    if shape.recompute == "full":
        return None
    if shape.recompute is None or isinstance(layers, str):
        return Effect(change, None, None, _unsaid(layers))
    freed = (layers.each - layers.formula.input) * layers.count - layers.each
    kept = "2sbh/t" if shape.sequence_parallel else "2sbh"
    return Effect(
        change,
        _at_peak(moments, freed, moments.layers),
        round(layers.each),
        f"measured: {size(layers.each)} a layer and micro-batch, of which the input stays, {kept} "
        f"= {size(layers.formula.input)} ({ACTIVATIONS}); one layer at a time is computed again",
    )


def _sequence_parallel(moments: Moments, shape: Shape, layers: Layers | str) -> Effect | None:
    change = "--sequence-parallel"
    if shape.tensor == 1 or shape.sequence_parallel:
        return None
    if shape.sequence_parallel is None or isinstance(layers, str) or shape.recompute == "full":
        return Effect(change, None, None, _unsaid(layers))
    if layers.mismatch > _WORST_FORMULA:
        return Effect(
            change,
            None,
            None,
            f"the formula gives {size(layers.formula.whole)} a layer and micro-batch, measured are "
            f"{size(layers.each)}",
        )
    freed = 10 * layers.formula.unit * (1 - 1 / shape.tensor) * layers.count
    return Effect(
        change,
        _at_peak(moments, freed, moments.layers),
        round(freed * layers.mismatch),
        f"formula: 10sbh(1 - 1/t) a layer and micro-batch ({ACTIVATIONS}), which is "
        f"{percent(layers.mismatch)} off what was measured of a layer",
    )


def _distributed_optimizer(moments: Moments, shape: Shape, layers: Layers | str) -> Effect | None:
    change = "--use-distributed-optimizer"
    if shape.distributed_optimizer or shape.data == 1:
        return None
    held = int(moments.optimizer[moments.peak])
    if shape.distributed_optimizer is None or not shape.data or not held:
        return Effect(
            change, None, None, "how large the optimizer state is, is not in the snapshot"
        )
    freed = held * (1 - 1 / shape.data)
    return Effect(
        change,
        _at_peak(moments, freed, moments.optimizer),
        round(_PADDING * held),
        f"measured: optimizer state has {size(held)}, of which 1/{shape.data} stays ({OPTIMIZER}: "
        "18 bytes a parameter become 6 + 12/d)",
    )


def _more_stages(moments: Moments, shape: Shape, layers: Layers | str) -> Effect | None:
    stages = 2 * shape.pipeline
    change = f"--pipeline-model-parallel-size {stages}"
    if not shape.layers or shape.layers % stages or (shape.data or 1) // shape.context < 2:
        return None
    each, here = layer_parameters(shape), shape.layers_here
    held, at = int(moments.parameters[moments.peak]), moments.peak
    if each is None or here is None or not shape.vocabulary or not shape.hidden or not held:
        return Effect(change, None, None, "how large the parameters are, is not in the snapshot")
    embedded = shape.stage in (0, shape.pipeline - 1)
    embedding = shape.vocabulary * shape.hidden / shape.tensor if embedded else 0.0
    expected = 2 * (each * here + embedding)
    mismatch = abs(held / expected - 1)
    if mismatch > _WORST_FORMULA:
        return Effect(
            change,
            None,
            None,
            f"by the formula (12h^2 a layer and the embedding) the parameters are "
            f"{size(expected)}, but {size(held)} are measured",
        )
    halved = held + int(moments.gradients[at])
    # Half as many replicas: a shard of the distributed optimizer is of half as many layers.
    halved += 0 if shape.distributed_optimizer else int(moments.optimizer[at])
    freed = halved / 2 * (each * here) / (each * here + embedding)
    return Effect(
        change,
        round(freed),
        round(freed * mismatch),
        "measured: half of the layers' parameters and gradients go; the first stage of 1F1B keeps "
        f"the activations of as many layers as before ({ACTIVATIONS})",
    )


def _unsaid(layers: Layers | str) -> str:
    return layers if isinstance(layers, str) else "the run's arguments do not tell how it was run"


_RULES: tuple[Callable[[Moments, Shape, Layers | str], Effect | None], ...] = (
    _selective,
    _full,
    _sequence_parallel,
    _distributed_optimizer,
    _more_stages,
)
