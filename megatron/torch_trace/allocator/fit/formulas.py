# SPDX-License-Identifier: Apache-2.0
"""Bytes of a transformer layer by formula, to put beside what was measured.

Activations: Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models,
2022 (arXiv 2205.05198), table 2, of 16-bit numbers, with the head count a, the micro-batch b, the
hidden size h, the sequence s and the size t of tensor parallelism:

    without                     sbh (10 + 24/t + 5as/(ht))
    sequence parallelism        sbh/t (34 + 5as/h)
    full recomputation          2sbh, or 2sbh/t with sequence parallelism: the layer's input

The term with s squared is core attention's; fused attention and selective recomputation have none.
Model state: the guide of Megatron Core's distributed optimizer: 18 bytes a parameter, and with the
distributed optimizer over d replicas 6 + 12/d.
"""

from __future__ import annotations

from dataclasses import dataclass

from megatron.torch_trace.allocator.ranks.shape import Shape

ACTIVATIONS = "Korthikanti et al. 2022"
OPTIMIZER = "guide of Megatron Core's distributed optimizer"


@dataclass(frozen=True, slots=True)
class LayerFormula:
    """One layer's activations of one micro-batch, in bytes.

    Args:
        unit: sbh, over the ranks of context parallelism.
        linear: all but core attention.
        core: core attention's; 0 where it is fused.
        input: what full recomputation keeps.
    """

    unit: float
    linear: float
    core: float
    input: float

    @property
    def whole(self) -> float:
        return self.linear + self.core


def layer_formula(shape: Shape, *, fused: bool) -> LayerFormula | None:
    """The formula of a model; None where its sizes are unknown, or it has experts.

    Args:
        shape: of the model.
        fused: core attention keeps nothing that grows with the square of the sequence.
    """
    if not shape.sequence or not shape.hidden or not shape.heads or not shape.dense:
        return None
    unit = shape.sequence * shape.micro_batch * shape.hidden / shape.context
    tensor = shape.tensor
    linear = unit * (34 / tensor if shape.sequence_parallel else 10 + 24 / tensor)
    square = 5 * shape.heads * shape.sequence / shape.hidden / tensor * unit
    kept = 2 * unit / (tensor if shape.sequence_parallel else 1)
    without = fused or shape.recompute == "selective"
    return LayerFormula(unit, linear, 0.0 if without else square, kept)


def layer_parameters(shape: Shape) -> float | None:
    """Parameters of one layer on one rank: 4 h^2 of attention, the MLP's two or three matrices."""
    if not shape.hidden or not shape.ffn or not shape.dense:
        return None
    mlp = (3 if shape.gated else 2) * shape.hidden * shape.ffn
    return (4 * shape.hidden**2 + mlp) / shape.tensor
