# SPDX-License-Identifier: Apache-2.0
"""FLOPs by piece of GPU work: of the innermost operator around its launch, so that none is twice.

    aten::linear > aten::addmm > launch                    of aten::addmm
    _Linear > launch of a product (Transformer Engine)     of the Function, from its own shapes
    _LinearBackward > launch of a product                  from the shapes of the forward pass

The FLOPs of an operator stand at the first piece of work that it launched. A product or attention
of which the trace does not tell the FLOPs (a CUDA graph, a library unknown here, shapes not
recorded) is marked, so that what it belongs to is unknown and not too little.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from megatron.torch_trace.analysis.gpu_work.flops import (
    BACKWARD,
    function_flops,
    has_formula,
    is_function,
    operator_flops,
)
from megatron.torch_trace.analysis.timeline.activity import NONE
from megatron.torch_trace.analysis.timeline.code_columns import present, rows_with
from megatron.torch_trace.analysis.timeline.kernel_names import family_of
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.columns.intervals import Ints
from megatron.torch_trace.format.json_text import value_of

_PRODUCTS = ("gemm", "attention", "convolution")
_FUSED = ("flash", "fmha", "sdpa")
_FUSED_ATTENTION = "FusedAttnFunc"
_MASK = ["causal"]
"""As older versions of Transformer Engine tell it; newer ones hide it, and the trace tells it."""
_NO_PRODUCT = re.compile(r"thd_|cu_seqlens|rng_state|seed_and_offset|num_segments|setup_grouped")
"""What fused attention and grouped products of Transformer Engine run beside them."""
# cuBLAS names its products after the types of both matrices: q is e4m3, r is e5m2.
_EIGHT_BIT = re.compile(r"nvjet_(?:sm\d+_)?[qr][qr]|e4m3|e5m2|fp8|float8|f8f8|_i8|int8")


@dataclass(frozen=True, slots=True)
class WorkFlops:
    """For each row of `Activity.gpu`.

    Args:
        flops: of the operator whose first piece of work it is; 0 for all others.
        eight_bit: of these, in a number format of 8 bits.
        unknown: it is a product or attention of which the FLOPs are unknown.
    """

    flops: Ints
    eight_bit: Ints
    unknown: npt.NDArray[np.bool_]


def work_flops(timeline: Timeline) -> WorkFlops | None:
    """FLOPs of all GPU work, arrays of shape (GPU work,); None for a trace without shapes.

    Source: docs/computed.md, "FLOPs of a module".
    """
    activity = timeline.activity
    if not activity.shapes:
        return None
    products = _products(timeline)
    operator = timeline.launching_operator
    flops = np.zeros(len(operator), dtype=np.int64)
    called, first, of = np.unique(operator, return_index=True, return_inverse=True)
    kernels = np.bincount(of[products & ~_helpers(timeline)], minlength=len(called)).tolist()
    narrow = np.bincount(of[products & _in_eight_bits(timeline)], minlength=len(called)) > 0
    eight_bit = np.zeros_like(flops)
    counted = activity.named(activity.ops, has_formula)
    without = np.ones(len(called), dtype=bool)
    for number, row in enumerate(called.tolist()):
        if row == NONE or not counted[row]:
            continue
        found = _flops(timeline, row, kernels[number])
        without[number] = found is None
        flops[first[number]] = found or 0
        eight_bit[first[number]] = (found or 0) * narrow[number]
    return WorkFlops(flops, eight_bit, products & without[of])


def _flops(timeline: Timeline, row: int, kernels: int) -> int | None:
    """FLOPs of what the operator in this row of `ops` launched; None if it has no formula."""
    activity = timeline.activity
    name = activity.names[int(activity.ops.name[row])]
    if is_function(name):
        # Most of the time it leaves the product to an operator inside, which counts it.
        return function_flops(name, *_arguments(timeline, row)) if kernels else None
    function = name.removesuffix(BACKWARD)
    if function == name or not is_function(function):
        return operator_flops(name, *_arguments(timeline, row))
    maker = int(timeline.forward_operators[row])
    if not kernels or maker == NONE or activity.names[int(activity.ops.name[maker])] != function:
        return None
    return function_flops(function, *_arguments(timeline, maker), kernels)


def _arguments(timeline: Timeline, row: int) -> tuple[list[Any], list[str]]:
    activity = timeline.activity
    shape, inputs = int(activity.ops.shape[row]), int(activity.ops.inputs[row])
    told = [str(one) for one in _parsed(activity.inputs[inputs])] if inputs != NONE else []
    if activity.names[int(activity.ops.name[row])] == _FUSED_ATTENTION:
        told += _MASK * (activity.metadata.own.get("causal_attention") is True)
    return _parsed(activity.shapes[shape]) if shape != NONE else [], told


@lru_cache(maxsize=1 << 14)
def _parsed(text: str) -> list[Any]:
    try:
        found = value_of(text)
    except ValueError:
        return []
    return found if isinstance(found, list) else []


def _products(timeline: Timeline) -> npt.NDArray[np.bool_]:
    """Which rows of gpu are products, convolutions or fused attention, by their names."""
    names, gpu = timeline.activity.names, timeline.activity.gpu
    codes = [code for code in present(gpu.name) if _is_product(names[code])]
    return timeline.is_compute & rows_with(gpu.name, codes, len(names))


def _is_product(name: str) -> bool:
    folded = name.lower()
    if _NO_PRODUCT.search(folded):
        return False
    if "softmax" in folded and not any(word in folded for word in _FUSED):
        return False
    return family_of(name) in _PRODUCTS


def _in_eight_bits(timeline: Timeline) -> npt.NDArray[np.bool_]:
    """Kernels whose matrices have 8 bits an element, by their names."""
    activity = timeline.activity
    return activity.named(activity.gpu, lambda name: bool(_EIGHT_BIT.search(name.lower())))


def _helpers(timeline: Timeline) -> npt.NDArray[np.bool_]:
    """Kernels that only add up the parts of a product that was split."""
    activity = timeline.activity
    return activity.named(activity.gpu, lambda name: "splitkreduce" in name.lower())
