# SPDX-License-Identifier: Apache-2.0
"""FLOPs of matrix products and attention from the shapes of their inputs; a multiply-add is two.

product [m, k] x [k, n]             2 m n k; a batch of b of them b times that
linear  [..., k] x weight [n, k]    2 tokens n k; backward as much for the input's gradient, and as
                                    much for the weight's
grouped product over experts        2 tokens n k: each token passes through one expert
attention, b batches of h heads     2 b h q kv (d + dv) forward: Q K^T and P V
                                    2 b h q kv (3 d + 2 dv) backward: Q K^T again, dP, dV, dQ, dK
                                    half of either where the operator's arguments say causal

Products are by definition. Attention is Dao 2023, "FlashAttention-2", section 4.1: backward is 2.5
times forward where d = dv, causal is half. All other operators count as none: an embedding looks
up, its gradient adds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

Dims = Sequence[Any]
"""Sizes of an operator's inputs: a list of numbers for a tensor, `[]` for what is none."""

Inputs = Sequence[str]
"""The inputs that are no tensors, as torch writes them; `""` in the place of a tensor."""


@dataclass(frozen=True, slots=True)
class _Attention:
    """Where an operator has what.

    Args:
        query: position of Q; K and V follow.
        sequence: the dimension of a tensor that is the sequence.
        causal: position of the flag, or of the type of the mask, whose 0 is none.
        backward: it is the backward pass.
    """

    query: int
    sequence: int
    causal: int
    backward: bool = False


# Positions by torch's own schemas and by flash-attn's signatures.
_ATTENTION = {
    "aten::_scaled_dot_product_flash_attention": _Attention(0, 2, 4),
    "aten::_scaled_dot_product_efficient_attention": _Attention(0, 2, 6),
    "aten::_scaled_dot_product_cudnn_attention": _Attention(0, 2, 6),
    "aten::_flash_attention_forward": _Attention(0, 1, 8),
    "aten::_efficient_attention_forward": _Attention(0, 1, 9),
    "aten::_cudnn_attention_forward": _Attention(0, 2, 10),
    "aten::_scaled_dot_product_flash_attention_backward": _Attention(1, 2, 11, True),
    "aten::_scaled_dot_product_efficient_attention_backward": _Attention(1, 2, 11, True),
    "aten::_scaled_dot_product_cudnn_attention_backward": _Attention(1, 2, 14, True),
    "aten::_flash_attention_backward": _Attention(1, 1, 11, True),
    "aten::_efficient_attention_backward": _Attention(1, 1, 14, True),
    "flash_attn::_flash_attn_forward": _Attention(0, 1, 5),
    "flash_attn::_flash_attn_backward": _Attention(1, 1, 11, True),
}

_LINEAR = "aten::linear"

BACKWARD = "Backward"
"""Behind the name of a Function it is that of its backward pass."""

# Positions of the two matrices of products.
_PRODUCTS = {
    "aten::mm": (0, 1),
    "aten::bmm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::baddbmm": (1, 2),
    "aten::_addmm_activation": (1, 2),
    "aten::_scaled_mm": (0, 1),
    "aten::_int_mm": (0, 1),
    "aten::_grouped_mm": (0, 1),
    "aten::_scaled_grouped_mm": (0, 1),
}


def has_formula(name: str) -> bool:
    """Whether FLOPs of operators by this name can be told from shapes."""
    operator = name in _PRODUCTS or name in _ATTENTION or name == _LINEAR
    return operator or name.removesuffix(BACKWARD) in _FUNCTIONS


def operator_flops(name: str, dims: Dims, inputs: Inputs) -> int | None:
    """FLOPs of one call of an operator of torch's or of a library's; None if it has no formula.

    Args:
        name: as in the trace: `aten::mm`.
        dims: sizes of its inputs.
        inputs: its other inputs, of attention; empty if not recorded.

    Source: docs/computed.md, "FLOPs of a module": a multiply-add is two FLOPs; attention's backward
    pass is Dao 2023, "FlashAttention-2".
    """
    if name in _PRODUCTS:
        first, second = _PRODUCTS[name]
        return _product(_tensor(dims, first), _tensor(dims, second))
    if name == _LINEAR:
        return _linear(dims)
    attention = _ATTENTION.get(name)
    if attention is None:
        return None
    query, key, value = (_tensor(dims, attention.query + n) for n in range(3))
    if not len(query) == len(key) == len(value) == 4:
        return None
    flops = _attention(query, value, key[attention.sequence], backward=attention.backward)
    flag = inputs[attention.causal] if attention.causal < len(inputs) else ""
    return flops // 2 if flag not in ("", "False", "0") else flops


def _tensor(dims: Dims, position: int) -> list[int]:
    sizes = dims[position] if position < len(dims) else []
    return sizes if isinstance(sizes, list) and all(isinstance(one, int) for one in sizes) else []


def _product(first: list[int], second: list[int]) -> int | None:
    """Of [m, k] x [k, n], either with a batch or, in grouped products, one of experts."""
    if not (2 <= len(first) <= 3 and 2 <= len(second) <= 3) or first[-1] != second[-2]:
        return None
    batch = first[0] if len(first) == len(second) == 3 else 1
    return 2 * batch * first[-2] * first[-1] * second[-1]


def _linear(dims: Dims) -> int | None:
    """Of tokens [..., k] and a weight [n, k] in any order; the weight may have copies."""
    tensors = [sizes for n in range(len(dims)) if len(sizes := _tensor(dims, n)) >= 2]
    weight = next((one for one in tensors if len(one) == 2), None)
    if weight is None:
        return None
    others = [one for one in tensors if one[-1] == weight[-1] and one is not weight]
    # What looks like the weight is taken for the tokens only if nothing else can be them.
    others.sort(key=lambda one: (len(one) == 2, one == weight))
    return 2 * prod(others[0]) * weight[0] if others else None


def _attention(query: list[int], value: list[int], keys: int, *, backward: bool = False) -> int:
    of_query, of_value = (3, 2) if backward else (1, 1)
    depth = of_query * query[-1] + of_value * value[-1]
    return 2 * prod(query[:-1]) * keys * depth


def _grouped(dims: Dims) -> int | None:
    """Of tokens [t, k] and experts' weights [e, k, n] or [e, n, k]."""
    tokens, weights = _tensor(dims, 0), _tensor(dims, 1)
    if len(tokens) != 2 or len(weights) != 3 or tokens[1] not in weights[1:]:
        return None
    return 2 * tokens[0] * weights[1] * weights[2]


def _mlp(dims: Dims) -> int | None:
    """Of tokens [..., h], a weight [f, h], and one [h, g]; g is f / 2 where the MLP is gated."""
    tensors = [sizes for n in range(len(dims)) if len(sizes := _tensor(dims, n)) >= 2]
    if len(tensors) < 3:
        return None
    tokens, width = prod(tensors[0][:-1]), tensors[0][-1]
    up = next((one for one in tensors[1:] if len(one) == 2 and one[1] == width), None)
    down = next((one for one in reversed(tensors) if len(one) == 2 and one[0] == width), None)
    if up is None or down is None or down is up:
        return None
    return 2 * tokens * (prod(up) + prod(down))


def _flash(dims: Dims, inputs: Inputs, *, backward: bool) -> int | None:
    query, key, value = (_tensor(dims, n) for n in range(3))
    if not len(query) == len(key) == len(value) == 4:
        return None
    flops = _attention(query, value, key[1], backward=backward)
    return flops // 2 if len(inputs) > 5 and inputs[5] == "True" else flops


def _fused(dims: Dims, inputs: Inputs, *, backward: bool) -> int | None:
    """Of Transformer Engine: the third input is the longest sequence of keys, layouts differ.

    In newer versions Q, K and V come first, and nothing tells the length, the layout or the mask.
    """
    tensors = [sizes for n in range(len(dims)) if len(sizes := _tensor(dims, n)) == 4]
    if len(tensors) < 3:
        return None
    if len(_tensor(dims, 0)) == 4:
        keys = _sequence(tensors[0], tensors[1])
    elif len(inputs) > 2 and inputs[2].isdecimal():
        keys = int(inputs[2])
    else:
        return None
    flops = _attention(tensors[0], tensors[2], keys, backward=backward)
    return flops // 2 if any("causal" in one for one in inputs) else flops


def _sequence(query: list[int], key: list[int]) -> int:
    """Length of the keys in [sequence, batch, ...] or [batch, sequence, ...].

    The batch is the dimension that both have; where they have both, the longer one is the sequence.
    """
    different = [n for n in (0, 1) if query[n] != key[n]]
    return key[different[0]] if len(different) == 1 else max(key[:2])


def _of_products(
    formula: Callable[[Dims], int | None], launched_by_one: int
) -> Callable[[Dims, Inputs, int | None], int | None]:
    """A Function of products: its backward has up to twice them, and shows how many it launched."""

    def flops(dims: Dims, inputs: Inputs, backward_kernels: int | None) -> int | None:
        forward = formula(dims)
        if forward is None or backward_kernels is None:
            return forward
        return forward * min(2, -(-backward_kernels // launched_by_one))

    return flops


def _of_attention(
    formula: Callable[..., int | None],
) -> Callable[[Dims, Inputs, int | None], int | None]:
    def flops(dims: Dims, inputs: Inputs, backward_kernels: int | None) -> int | None:
        found: int | None = formula(dims, inputs, backward=backward_kernels is not None)
        return found

    return flops


# Autograd Functions that launch products themselves, without an operator of torch's: of Megatron
# (its fused gradient of weights), Transformer Engine, grouped_gemm and flash-attn.
_FUNCTIONS: dict[str, Callable[[Dims, Inputs, int | None], int | None]] = {
    "LinearWithGradAccumulationAndAsyncCommunication": _of_products(_linear, 1),
    "LinearWithFrozenWeight": _of_products(_linear, 1),
    "_Linear": _of_products(_linear, 1),
    "_LayerNormLinear": _of_products(_linear, 1),
    "_GroupedLinear": _of_products(_linear, 1),
    "_LayerNormMLP": _of_products(_mlp, 2),
    "GroupedGemm": _of_products(_grouped, 1),
    "FlashAttnFunc": _of_attention(_flash),
    "FusedAttnFunc": _of_attention(_fused),
}


def is_function(name: str) -> bool:
    """Whether `name` is an autograd Function that is known to launch products itself."""
    return name in _FUNCTIONS


def function_flops(
    name: str, dims: Dims, inputs: Inputs, backward_kernels: int | None = None
) -> int | None:
    """FLOPs that one call of an autograd Function launches itself; None if that is unknown.

    Args:
        name: of its forward pass.
        dims, inputs: of its forward pass, for its backward pass too.
        backward_kernels: products that its backward pass launched; None for the forward pass. The
            gradient of the input may not be wanted, and that of the weight may be made elsewhere.

    Raises:
        KeyError: `name` is none of which `is_function` is true.

    Source: docs/computed.md, "FLOPs of a module".
    """
    return _FUNCTIONS[name](dims, inputs, backward_kernels)
