# SPDX-License-Identifier: Apache-2.0
"""What to try, in Megatron's flags, and only what the recorded command line does not have already.

A flag that not every Megatron has is named with the core version that brought it. What Megatron
refuses together is never advised together; its checks are in `validate_args` and in the
`__post_init__` of `TransformerConfig`.
"""

from __future__ import annotations

from collections.abc import Sequence

from megatron.torch_trace.analysis.findings.shares import flag_value, has_flag
from megatron.torch_trace.analysis.results.analysis import RankResult
from megatron.torch_trace.analysis.timeline.command_line import INTERLEAVING, LAYOUT

_OVERLAPPING = (
    "Gradients and parameters are overlapped already: more work to hide them behind (larger "
    "`--micro-batch-size` or more accumulation), or other buckets (`--ddp-bucket-size`)."
)
_ONE_GROUP = (
    "The job has one group for everything: fewer and larger exchanges (gradient accumulation, "
    "`bucket_cap_mb` of DDP) give compute more time to hide them."
)
_OTHERS = {
    "cp": "Try another `--cp-comm-type` (core 0.10 on; p2p overlaps with attention), or a smaller "
    "context-parallel size.",
    "embedding": "The first and the last stage exchange the gradient of the shared embedding: "
    "`--untie-embeddings-and-output-weights` ends that, but it is another, larger model, which "
    "needs training from the start.",
    "mp": "These are norms and checks over the whole model copy: fewer of them (no "
    "`--log-params-norm`, no `--log-num-zeros-in-grad`), and ranks that arrive together.",
    "default": "These are not the model's own: look for logging, checks and barriers in every "
    "iteration, and raise `--log-interval`.",
}
_NO_FLAG = (
    "Look in the timeline what exchanges over this group, and whether its ranks arrive together."
)
_NO_GROUP = "The trace does not tell the process group; torch 2.4 or newer records it."
_EARLIER = (
    "The trace does not tell the process group of what was launched before it began: record more "
    "iterations with `--torch-profile-active`."
)


def interleaves(ranks: Sequence[RankResult]) -> bool:
    """Whether the recorded command line asks for virtual pipeline stages."""
    return any(has_flag(ranks, flag) for flag in INTERLEAVING)


def for_exposed(dimension: str, ranks: Sequence[RankResult]) -> str:
    """What may hide the communication of a dimension."""
    own = {"tp": _tensor, "dp": _data, "pp": _pipeline, "ep": _experts, "edp": _expert_data}
    if dimension in own:
        return own[dimension](ranks)
    dimensions = {total.dimension for rank in ranks for total in rank.dimensions}
    if dimension == "default" and dimensions <= {"default", "unknown"}:
        return _ONE_GROUP
    if dimension != "unknown":
        return _OTHERS.get(dimension, _NO_FLAG)
    return _EARLIER if dimensions - {"unknown"} else _NO_GROUP


def _tensor(ranks: Sequence[RankResult]) -> str:
    if has_flag(ranks, "--tp-comm-overlap"):
        return "It is overlapped already, as far as it goes: try a smaller tensor-parallel size."
    first = "" if has_flag(ranks, "--sequence-parallel") else "`--sequence-parallel` with "
    return (
        f"Try {first}`--tp-comm-overlap` (Transformer Engine), or a smaller tensor-parallel size."
    )


def _data(ranks: Sequence[RankResult]) -> str:
    if has_flag(ranks, "--overlap-grad-reduce"):
        distributed = has_flag(ranks, "--use-distributed-optimizer")
        if distributed and not has_flag(ranks, "--overlap-param-gather"):
            return "Gradients are overlapped already; try `--overlap-param-gather` too."
        return _OVERLAPPING
    advice = (
        "Try `--overlap-grad-reduce` and, with `--use-distributed-optimizer`, "
        "`--overlap-param-gather`."
    )
    if any(_overlapped(rank) > 0.05 for rank in ranks):
        # No command line was recorded, but something of it runs beside compute.
        return f"{advice} If they are on: {_OVERLAPPING[0].lower()}{_OVERLAPPING[1:]}"
    return advice


def _overlapped(rank: RankResult) -> float:
    totals = [t for t in rank.dimensions if t.dimension == "dp"]
    time = sum(t.time_ns for t in totals)
    return 1 - sum(t.exposed_ns for t in totals) / time if time else 0.0


def _pipeline(ranks: Sequence[RankResult]) -> str:
    if not interleaves(ranks) and not has_flag(ranks, LAYOUT):
        return (
            "Try `--num-layers-per-virtual-pipeline-stage`, with which Megatron overlaps sends and "
            "receives with compute, and more micro-batches."
        )
    if has_flag(ranks, "--no-overlap-p2p-communication"):
        return "Drop `--no-overlap-p2p-communication`, and try more micro-batches."
    return "Stages are interleaved already: try more micro-batches, and stages of equal work."


def _experts(ranks: Sequence[RankResult]) -> str:
    uneven = "a larger `--moe-aux-loss-coeff` (0 unless given) if experts are uneven"
    if has_flag(ranks, "--overlap-moe-expert-parallel-comm"):
        return f"It is overlapped already, as far as it goes: try {uneven}."
    other = "`--moe-token-dispatcher-type flex` with DeepEP"
    flex = "" if flag_value(ranks, "--moe-token-dispatcher-type") == "flex" else f"{other}; "
    return (
        "Try `--overlap-moe-expert-parallel-comm` (core 0.14 on; with a pipeline it needs "
        f"interleaving); {flex}{uneven}."
    )


def _expert_data(ranks: Sequence[RankResult]) -> str:
    if has_flag(ranks, "--overlap-grad-reduce"):
        return _OVERLAPPING
    return "Try `--overlap-grad-reduce`; expert gradients are reduced in their own groups."


def for_bubble(ranks: Sequence[RankResult], chunks: int) -> str:
    """What makes the bubble of a pipeline smaller, of so many virtual stages on each rank."""
    more = (
        "More micro-batches (a smaller `--micro-batch-size`, or a larger `--global-batch-size`, "
        "which changes the training)"
    )
    if chunks > 1 or interleaves(ranks):
        return f"{more}, or more virtual stages, of fewer layers each."
    return f"{more}, or interleaving (`--num-layers-per-virtual-pipeline-stage`)."


def for_uneven_stages(ranks: Sequence[RankResult]) -> str:
    """How to move layers between stages."""
    if has_flag(ranks, LAYOUT):
        return f"Move layers in `{LAYOUT}`."
    return (
        "Move layers: `--decoder-first-pipeline-num-layers` and "
        "`--decoder-last-pipeline-num-layers`, or instead of them "
        "`--account-for-embedding-in-pipeline-split` and `--account-for-loss-in-pipeline-split` "
        f"(core 0.11 on){_with_interleaving(ranks)}."
    )


def _with_interleaving(ranks: Sequence[RankResult]) -> str:
    if not has_flag(ranks, INTERLEAVING[0]):
        return ""
    return f"; with the first two give `{INTERLEAVING[1]}` instead of `{INTERLEAVING[0]}`"


def for_launches(ranks: Sequence[RankResult]) -> str:
    """How to launch less."""
    parts = []
    graphs = flag_value(ranks, "--cuda-graph-impl") or "none"
    if graphs == "none" and not has_flag(ranks, "--enable-cuda-graph"):
        parts.append("CUDA graphs (`--cuda-graph-impl`; before core 0.15 `--enable-cuda-graph`)")
    if flag_value(ranks, "--transformer-impl") != "transformer_engine":
        parts.append("fused kernels (`--transformer-impl transformer_engine`)")
    parts.append("a larger `--micro-batch-size`")
    return (
        "Launch less (and mind that the profiler slows launches down: compare with the iteration "
        f"time without it): {', '.join(parts)}."
    )


def for_synchronisation(call: str, ranks: Sequence[RankResult]) -> str:
    """How to wait for the GPU less often."""
    piped = any(rank.pipeline for rank in ranks)
    if call == "cudaDeviceSynchronize" and piped and not interleaves(ranks):
        return (
            "Megatron synchronises the device after each batched send and receive; with "
            "interleaving (`--num-layers-per-virtual-pipeline-stage`) it overlaps them and does "
            "not."
        )
    flag = "--no-check-for-nan-in-loss-and-grad"
    checks = "" if has_flag(ranks, flag) else f"`{flag}` (nothing stops at a NaN then), "
    return (
        "Take the synchronisation out of the loop: no `.item()` or print of a tensor in each "
        f"micro-batch, {checks}pinned memory for copies to the GPU."
    )


def for_data_loader(ranks: Sequence[RankResult]) -> str:
    """How to get batches faster."""
    given = flag_value(ranks, "--num-workers") or ""
    workers = int(given) if given.isdecimal() else 0
    more = f"more than its {workers} workers" if workers >= 8 else "more workers"
    flag = "`--num-workers`" if workers >= 8 else "`--num-workers 8`"
    return (
        f"Give it {more} ({flag}), and look at the storage and at what the dataset does with each "
        "sample."
    )
