# SPDX-License-Identifier: Apache-2.0
"""What a flag would free at the peak, with its error, or why the data does not say it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from megatron.torch_trace.allocator.fit.formulas import ACTIVATIONS, OPTIMIZER
from megatron.torch_trace.allocator.fit.layers import (
    WORST_FORMULA,
    Layers,
    layer_state,
    layers_of,
)
from megatron.torch_trace.allocator.fit.moments import Moments
from megatron.torch_trace.allocator.ranks.shape import Shape
from megatron.torch_trace.format.integer_arrays import Ints
from megatron.torch_trace.wording import number, percent, size

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
    if layers.mismatch > WORST_FORMULA:
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
    if shape.distributed_optimizer or shape.sharded or shape.data == 1:
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


def _offloaded(moments: Moments, shape: Shape, layers: Layers | str) -> Effect | None:
    if shape.offloads or shape.offloads is None or shape.sharded:
        return None
    change = "--optimizer-cpu-offload --use-precision-aware-optimizer"
    change += "" if shape.distributed_optimizer else " --use-distributed-optimizer"
    held = int(moments.optimizer[moments.peak])
    if not held:
        return Effect(
            change, None, None, "how large the optimizer state is, is not in the snapshot"
        )
    return Effect(
        change,
        _at_peak(moments, held, moments.optimizer),
        round(_PADDING * held),
        f"measured: optimizer state has {size(held)}, all of which goes to the CPU "
        "(`--optimizer-offload-fraction` is 1)",
    )


def _more_stages(moments: Moments, shape: Shape, layers: Layers | str) -> Effect | None:
    stages = 2 * shape.pipeline
    change = f"--pipeline-model-parallel-size {stages}"
    if (
        shape.sharded
        or not shape.layers
        or shape.layers % stages
        or (shape.data or 1) // shape.context < 2
    ):
        return None
    state = layer_state(moments, shape)
    if isinstance(state, str):
        return Effect(change, None, None, state)
    # Half as many replicas: a shard of the distributed optimizer is of half as many layers.
    halved = state.model + (0 if shape.distributed_optimizer else state.optimizer)
    return Effect(
        change,
        round(halved / 2),
        round(halved / 2 * state.mismatch),
        "measured: half of the layers' parameters and gradients go; the first stage of 1F1B keeps "
        f"the activations of as many layers as before ({ACTIVATIONS})",
    )


def _one_layer_less(moments: Moments, shape: Shape, layers: Layers | str) -> Effect | None:
    here = shape.layers_here
    change = f"--pipeline-model-parallel-layout with a layer less on stage {shape.stage}"
    if shape.pipeline == 1 or shape.virtual > 1 or here is None or here < 2:
        return None
    state = layer_state(moments, shape)
    if isinstance(state, str) or isinstance(layers, str):
        return Effect(change, None, None, state if isinstance(state, str) else _unsaid(layers))
    kept = layers.count / here
    of_state = (state.model + state.optimizer) / here
    return Effect(
        change,
        round(of_state) + _at_peak(moments, layers.each * kept, moments.layers),
        round(of_state * state.mismatch + layers.each),
        f"measured: a layer has {size(of_state)} of parameters, gradients and optimizer state, and "
        f"{size(layers.each)} of activations for each of {number(kept)} micro-batches; another "
        "stage takes them",
    )


def _unsaid(layers: Layers | str) -> str:
    return layers if isinstance(layers, str) else "the run's arguments do not tell how it was run"


_RULES: tuple[Callable[[Moments, Shape, Layers | str], Effect | None], ...] = (
    _selective,
    _full,
    _sequence_parallel,
    _distributed_optimizer,
    _offloaded,
    _more_stages,
    _one_layer_less,
)
