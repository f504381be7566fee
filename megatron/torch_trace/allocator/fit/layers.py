# SPDX-License-Identifier: Apache-2.0
"""A stage's transformer layers: what each keeps of a micro-batch, and its share of the state."""

from __future__ import annotations

from dataclasses import dataclass

from megatron.torch_trace.allocator.fit.formulas import (
    LayerFormula,
    layer_formula,
    layer_parameters,
)
from megatron.torch_trace.allocator.fit.moments import Moments
from megatron.torch_trace.allocator.ranks.shape import Shape
from megatron.torch_trace.wording import size

WORST_FORMULA = 0.30
"""A formula that is further off what was measured, as a share, tells nothing."""


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


@dataclass(frozen=True, slots=True)
class LayerState:
    """Parameters, gradients and optimizer state of a stage's layers at the peak.

    Args:
        model: bytes of parameters and gradients of all layers of the stage.
        optimizer: of their optimizer state.
        mismatch: by how much the formula of parameters is off, as a share.
    """

    model: float
    optimizer: float
    mismatch: float


def layer_state(moments: Moments, shape: Shape) -> LayerState | str:
    """It, or why the data does not tell it."""
    each, here, at = layer_parameters(shape), shape.layers_here, moments.peak
    held = int(moments.parameters[at])
    if each is None or here is None or not shape.vocabulary or not shape.hidden or not held:
        return "how large the parameters are, is not in the snapshot"
    embedded = shape.stage in (0, shape.pipeline - 1)
    embedding = shape.vocabulary * shape.hidden / shape.tensor if embedded else 0.0
    expected = 2 * (each * here + embedding)
    mismatch = abs(held / expected - 1)
    if mismatch > WORST_FORMULA:
        return (
            f"by the formula (12h^2 a layer and the embedding) the parameters are "
            f"{size(expected)}, but {size(held)} are measured"
        )
    share = each * here / (each * here + embedding)
    model = share * (held + int(moments.gradients[at]))
    return LayerState(model, share * int(moments.optimizer[at]), mismatch)
