# SPDX-License-Identifier: Apache-2.0
"""What a kernel's name tells: its family, and its name for people.

Names are untrusted and long; every pattern is searched in the folded name, in order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from megatron.torch_trace.analysis.timeline.mangled_names import demangled

COMMUNICATION = "communication"
MEMORY = "memory"
COMPUTE = "compute"

_FAMILIES = (
    ("rotary embedding", r"(?:\b|_)rope(?:\b|_)|rotary"),
    (
        "attention",
        r"flash|fmha|\bmha|attention|attn|softmax.*fused|fused.*softmax|sdpa|(?:\b|_)thd_|cu_seqlens"
        # What cuDNN runs beside the backward pass of its fused attention.
        r"|compute_dot_do_o|convert_dq_to",
    ),
    (
        "gemm",
        r"gemm|\bbmm_|cutlass|cublas|nvjet|wgmma|xmma|splitk|matmul|cijk_|ampere_.*(?:tn|nn|nt)\b",
    ),
    # Of products in 8 and 4 bit, as Transformer Engine names them: the largest absolute value of a
    # tensor, its scale, and the conversion itself, which often transposes as well.
    (
        "amax and scales",
        r"amax_(?:kernel|and_scale|zero|flat)|(?:zero|partial|wise|multi)_?amax|amax(?:tma|memcpy)|"
        r"delayed_scaling|current_scaling|compute_?scale|scale_inv"
        r"|zero_scales|scaling_factors|swizzle_(?:scaling|block|row|col)|nvfp4_\w*scale",
    ),
    (
        "quantisation",
        r"quantize|cast_transpose|cast_fp8|partial_cast|transpose_dbias|block_scaled_|hadamard"
        r"|nvfp4_transpose|\[identity\]",
    ),
    # Before convolution, whose libraries have these kernels too.
    (
        "normalisation",
        # Apex calls the backward pass of its norm cuComputeGradInput.
        r"norm|rmsn|gammabeta|cucomputegradinput|ln_fwd|ln_bwd|(?:\b|_)bn_(?:fw|bw|inf|add|train|forward|backward)",
    ),
    ("convolution", r"conv(?:olve|olution|2d|_depthwise)|cudnn|implicit|winograd|miopen"),
    # The second kernel of Apex's multi-tensor norm is called cleanup.
    ("optimizer", r"multi_tensor|adam|lamb\b|sgd|optimizer|foreach|^cleanup$"),
    ("softmax", r"softmax"),
    (
        "mixture of experts",
        r"moe|permute|row_id_map|chunk_sort|multi_(?:un)?padding|topk|top_k|router|bitonic|radix|sort|bincount|histogram",
    ),
    (
        "embedding",
        r"embedding|indexselect|index_select|gather|scatter|index_(?:put|add)|indexing_backward"
        # The parts of the gradient of an embedding.
        r"|compute_grad_weight|partial_segment|partials_per_segment",
    ),
    ("cross entropy", r"cross_entropy|nll_loss"),
    ("random", r"dropout|random|philox|distribution"),
    ("cast or copy", r"copy|_cast|swap_first_dims|kv_cache|to_copy|transpose|catarray|cat_"),
    ("reduction", r"reduce|reduction|scan|cumsum|argmax"),
    (
        "elementwise",
        r"elementwise|gelu|silu|swiglu|relu|fill|pointwise|bias|gated_act|unary_"
        r"|scaled_gated_|element_mul|memset|set_float",
    ),
)
_COMPILED = tuple((family, re.compile(pattern)) for family, pattern in _FAMILIES)
_INDUCTOR = re.compile(r"^triton_(poi|red|per|tem|for|split)[a-z]*_fused_?")
_OPENED_BY = {">": "<", ")": "("}
_PLAIN = ("cast or copy", "reduction", "elementwise", "embedding")
_FUNCTOR = re.compile(r"(\w+(?:Functor\w*|_kernel_cuda|_kernel_impl|Ops|_scalar))\b")
_UNARY = re.compile(r"&.*?::(\w+)(?:<[^<>]*>)?(?:\(|\)|,)")
"""The function that Transformer Engine's kernel applies to each element."""


@lru_cache(maxsize=1 << 16)
def family_of(name: str) -> str:
    """Family of a compute kernel: `gemm`, `attention`, ..., `fused (inductor)`, `other`.

    The function's own name decides, its template arguments only if that tells nothing. A kernel
    that inductor fused is named after its operators; it belongs to the family of the most
    characteristic of them, or to `fused (inductor)`.
    """
    folded = name.lower()
    inductor = _INDUCTOR.match(folded)
    # torch's permute only looks at a tensor in another order; tokens of experts are moved.
    texts = (short_name(name).lower(), folded)
    for text in (one.replace("_permute", "") for one in texts) if inductor else texts:
        for family, pattern in _COMPILED:
            if pattern.search(text):
                return "fused (inductor)" if inductor and family in _PLAIN else family
    if inductor:
        return "fused (inductor)"
    return "triton" if folded.startswith("triton") else "other"


@lru_cache(maxsize=1 << 16)
def short_name(name: str) -> str:
    """A kernel's name for people: without return type, namespaces, template arguments.

    `void at::native::elementwise_kernel<4, at::native::AddFunctor<float>, ...>(int, ...)` ->
    `elementwise_kernel [AddFunctor]`; of kernels that take a functor it tells them apart.
    `cutlass::Kernel<cutlass_80_tensorop_gemm>(...)` -> `cutlass_80_tensorop_gemm`.
    """
    if name.startswith(("Memcpy", "Memset")):
        return name
    text = demangled(name).replace("(anonymous namespace)", "anonymous")
    # Template arguments may hold parentheses, and those may hold a `>` that closes nothing.
    bare: list[str] = []
    opened: list[str] = []
    for character in text:
        if character == "(" and not opened:
            break
        if character in "<(":
            opened.append(character)
        elif character in ">)":
            if opened and opened[-1] == _OPENED_BY[character]:
                opened.pop()
        elif not opened:
            bare.append(character)
    words = "".join(bare).split()
    base = words[-1].rsplit("::", 1)[-1] if words else name
    if base in ("Kernel", "Kernel2", "device_kernel"):
        inner = re.search(r"<\s*(?:\w+::)*(\w+)", text)
        return inner[1] if inner else base
    if "elementwise" in base or "multi_tensor" in base or base == "reduce_kernel":
        functor = _FUNCTOR.search(text)
        if functor:
            return f"{base} [{functor[1]}]"
    if base in ("unary_kernel", "unary_grad_kernel"):
        function = _UNARY.search(text)
        return f"{base} [{function[1]}]" if function else base
    return base or name


_WORD = re.compile(r"[A-Za-z_]\w*|\d+")


def distinct_names(names: Sequence[str]) -> list[str]:
    """Short names of different kernels, told apart where two have the same one.

    `gemm<float, 4>` and `gemm<half, 4>` -> `gemm [float]` and `gemm [half]`: by the first words in
    which they differ; `gemm [1]` and `gemm [2]` where words do not tell.
    """
    short = [short_name(name) for name in names]
    alike: dict[str, list[int]] = {}
    for number, name in enumerate(short):
        alike.setdefault(name, []).append(number)
    for base, numbers in alike.items():
        if len(numbers) > 1:
            for number, word in zip(
                numbers, _differences([names[p] for p in numbers]), strict=True
            ):
                short[number] = f"{base} [{word}]"
    return short


def _differences(names: list[str]) -> list[str]:
    """For each name the word, or if need be the words, in which it differs from the others."""
    words = [_WORD.findall(demangled(name)) for name in names]
    length = max(map(len, words))
    padded = [one + [""] * (length - len(one)) for one in words]
    told: list[tuple[str, ...]] = [()] * len(names)
    for column in zip(*padded, strict=True):
        if len(set(column)) > 1 and len({*zip(told, column, strict=True)}) > len(set(told)):
            told = [(*known, word) for known, word in zip(told, column, strict=True)]
        if len(set(told)) == len(names):
            return [", ".join(filter(None, one)) or "-" for one in told]
    return [str(number) for number in range(1, len(names) + 1)]
