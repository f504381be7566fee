# SPDX-License-Identifier: Apache-2.0
"""What may overlap the communication of a parallel dimension with compute, or make it less."""

from __future__ import annotations

from collections.abc import Sequence

from megatron.torch_trace.analysis.communication.dimensions import DEFAULT, IN_GRAPH, UNKNOWN
from megatron.torch_trace.analysis.findings.megatron_flags import (
    flag_value,
    flags,
    has_flag,
    interleaves,
)
from megatron.torch_trace.analysis.results.analysis import RankResult
from megatron.torch_trace.analysis.timeline.command_line import LAYOUT
from megatron.torch_trace.wording import listed

UNDESCRIBED = "undefined"
"""What torch writes for a process group that nobody described."""

_SOME = 0.05
"""Of the data-parallel communication: less is the edges of kernels that touch by chance."""
_IN_ORDER = {"cp", "tp"}
"""Dimensions for which Megatron asks that kernels start in the order of their launch."""

_RACK = ("GB200", "GB300")
"""In names of devices whose hosts are joined by NVLink, up to a rack."""

_ONE_GROUP = (
    "Exchange less often and more at once (gradient accumulation, `bucket_cap_mb` of DDP), so that "
    "compute has more time to overlap it: the job has one process group for everything."
)
_NO_FLAG = (
    "Look in the timeline for what exchanges over this group, and whether its ranks arrive "
    "together."
)
_NO_GROUP = "Record with torch 2.4 or newer, which writes the process group into the trace."
_NO_DESCRIPTION = (
    "Give process groups a description (`group_desc` of `torch.distributed.new_group`), so that "
    "the trace says what they are for, and look in the timeline for what exchanges over this one."
)
_IN_GRAPH = (
    "Record a window that begins before the graphs are captured (`--torch-profile-iterations 1-6`) "
    "or a run without graphs: what a graph launches has no process group in a trace, so it is not "
    "known what to overlap."
)
_EARLIER = (
    "Record more iterations (`--torch-profile-active`): the trace does not hold the process group "
    "of what was launched before it began."
)
_EMBEDDING = (
    "Untie input and output embedding {flag}, so that the first and the last stage have no "
    "gradient to exchange; mind that it is another, larger model, which needs training from the "
    "start."
)
_WHOLE_MODEL = (
    "Compute norms and checks over the whole model copy less often {flag}, and see that ranks "
    "arrive together."
)
_EVERYWHERE = (
    "Look for logging, checks and barriers in every iteration, and do them less often {flag}: the "
    "model's own exchanges have groups of their own."
)


def for_exposed(dimension: str, ranks: Sequence[RankResult]) -> str:
    """What to try for a dimension, that the recorded command line does not have yet."""
    own = {"tp": _tensor, "dp": _data, "pp": _pipeline, "ep": _experts, "edp": _expert_data,
           "cp": _context, "embedding": _embedding, "mp": _whole_model}  # fmt: skip
    if dimension in own:
        return own[dimension](ranks)
    if dimension == UNKNOWN:
        return _unknown(ranks)
    if dimension != DEFAULT:
        return _NO_FLAG
    if {total.dimension for rank in ranks for total in rank.dimensions} <= {DEFAULT, UNKNOWN}:
        return _ONE_GROUP
    return _EVERYWHERE.format(flag=flags(ranks, "`--log-interval`"))


def _unknown(ranks: Sequence[RankResult]) -> str:
    rows = [row for rank in ranks for row in rank.communication]
    groups = {row.group for row in rows if row.dimension == UNKNOWN} - {UNKNOWN}
    if IN_GRAPH in groups:
        return _IN_GRAPH
    if groups:
        return _NO_DESCRIPTION if groups == {UNDESCRIBED} else _NO_FLAG
    return _EARLIER if any(row.dimension != UNKNOWN for row in rows) else _NO_GROUP


def _tensor(ranks: Sequence[RankResult]) -> str:
    hosts = _hosts_of_one_group(ranks)
    if hosts:
        size = flags(ranks, "`--tensor-model-parallel-size`, at most the GPUs of a host")
        return (
            f"Keep every tensor-parallel group on one host {size}: ranks of one group are on "
            f"{listed(hosts)}, and the network between hosts is far slower than NVLink."
        )
    smaller = "use a smaller tensor-parallel size"
    if has_flag(ranks, "--tp-comm-overlap"):
        return (
            f"{smaller.capitalize()}: the communication is overlapped already, as far as it goes."
        )
    overlap = flags(ranks, "`--tp-comm-overlap`, with Transformer Engine")
    if has_flag(ranks, "--sequence-parallel"):
        return f"Overlap it with matrix products {overlap}, or {smaller}."
    sequence = flags(ranks, "`--sequence-parallel`")
    return (
        f"Split activations along the sequence {sequence} and overlap the communication with "
        f"matrix products {overlap}, or {smaller}."
    )


def _hosts_of_one_group(ranks: Sequence[RankResult]) -> tuple[str, ...]:
    """The hosts of a tensor-parallel group that has ranks on several; none where no such group is
    known: capture writes hosts and coordinates, and other traces do not tell."""
    groups: dict[tuple[int | None, ...], set[str]] = {}
    for rank in ranks:
        at = rank.coordinates
        if any(name in (rank.device or "") for name in _RACK):
            continue
        if rank.host_name and at.keys() >= {"tp", "pp", "dp"}:
            # Ranks of one group differ in tp alone; of the experts' coordinates, ep may differ too.
            place = at["pp"], at["dp"], at.get("cp")
            groups.setdefault(place, set()).add(rank.host_name)
    several = (hosts for hosts in groups.values() if len(hosts) > 1)
    return tuple(sorted(next(several, ())))


def _data(ranks: Sequence[RankResult]) -> str:
    if has_flag(ranks, "--overlap-grad-reduce"):
        distributed = has_flag(ranks, "--use-distributed-optimizer")
        if distributed and not has_flag(ranks, "--overlap-param-gather"):
            gather = flags(ranks, "`--overlap-param-gather`")
            return (
                f"Gather parameters while the forward pass computes {gather}: only the overlap of "
                "gradients is on yet."
            )
        return _more_to_overlap_with(ranks) if _overlaps(ranks) else _why_nothing_overlaps(ranks)
    overlap = flags(
        ranks,
        "`--overlap-grad-reduce` and, with `--use-distributed-optimizer`, `--overlap-param-gather`",
    )
    advice = f"Reduce gradients and gather parameters while the GPU computes {overlap}."
    if _overlaps(ranks):
        # No command line was recorded, but something of it runs beside compute.
        more = _more_to_overlap_with(ranks, why=False)
        return f"{advice} If that is on already: {more[0].lower()}{more[1:]}"
    return advice


def _more_to_overlap_with(ranks: Sequence[RankResult], *, why: bool = True) -> str:
    work = flags(ranks, "`--micro-batch-size`")
    buckets = flags(ranks, "`--ddp-bucket-size`")
    return (
        f"Give the communication more compute to overlap with: larger micro-batches {work} or "
        "more accumulation, or "
        f"other bucket sizes {buckets}"
        + ("; gradients and parameters are overlapped already." if why else ".")
    )


def _why_nothing_overlaps(ranks: Sequence[RankResult]) -> str:
    """What keeps communication from overlapping although the flags for it are given."""
    buckets = flags(ranks, "`--ddp-bucket-size`")
    dimensions = {total.dimension for rank in ranks for total in rank.dimensions}
    order = "kernels start in the order of their launch"
    if dimensions & _IN_ORDER:
        connections = (
            f"With `CUDA_DEVICE_MAX_CONNECTIONS=1`, which tensor and context parallelism need "
            f"before Blackwell, {order}."
        )
    else:
        connections = (
            f"If `CUDA_DEVICE_MAX_CONNECTIONS` is 1, unset it: with 1, {order}, and only tensor "
            "and context parallelism need that."
        )
    return (
        f"Find out why nothing overlaps, although the overlap is on. {connections} If one bucket "
        f"holds all gradients, try smaller buckets {buckets}."
    )


def _overlaps(ranks: Sequence[RankResult]) -> bool:
    """Whether some data-parallel communication runs beside compute."""
    return any(_overlapped(rank) > _SOME for rank in ranks)


def _overlapped(rank: RankResult) -> float:
    totals = [t for t in rank.dimensions if t.dimension == "dp"]
    time = sum(t.time_ns for t in totals)
    return 1 - sum(t.exposed_ns for t in totals) / time if time else 0.0


def _pipeline(ranks: Sequence[RankResult]) -> str:
    if not interleaves(ranks) and not has_flag(ranks, LAYOUT):
        flag = flags(ranks, "`--num-layers-per-virtual-pipeline-stage`")
        return (
            f"Interleave the stages {flag}, so that sends and receives overlap with compute, and "
            "use more micro-batches."
        )
    if has_flag(ranks, "--no-overlap-p2p-communication"):
        return "Drop `--no-overlap-p2p-communication`, and use more micro-batches."
    return "Use more micro-batches, and stages of equal work: the stages are interleaved already."


def _experts(ranks: Sequence[RankResult]) -> str:
    balance = flags(ranks, "`--moe-aux-loss-coeff`, 0 unless given")
    even = f"balance the experts {balance} if they are uneven"
    if has_flag(ranks, "--overlap-moe-expert-parallel-comm"):
        return f"{even.capitalize()}: the exchange is overlapped already, as far as it goes."
    overlap = flags(
        ranks,
        "`--overlap-moe-expert-parallel-comm`, core 0.14 on; with a pipeline it needs interleaving",
    )
    other = flags(ranks, "`--moe-token-dispatcher-type flex`")
    is_flex = flag_value(ranks, "--moe-token-dispatcher-type") == "flex"
    flex = "" if is_flex else f"dispatch tokens by DeepEP {other}; "
    return f"Overlap the exchange of tokens with compute {overlap}; {flex}{even}."


def _expert_data(ranks: Sequence[RankResult]) -> str:
    if has_flag(ranks, "--overlap-grad-reduce"):
        return _more_to_overlap_with(ranks)
    flag = flags(ranks, "`--overlap-grad-reduce`")
    return (
        f"Reduce gradients while the backward pass computes {flag}; those of experts are reduced "
        "in groups of their own."
    )


def _context(ranks: Sequence[RankResult]) -> str:
    smaller = "use a smaller context-parallel size"
    kind = flag_value(ranks, "--cp-comm-type")
    if kind is not None and "p2p" in kind:
        return (
            f"{smaller.capitalize()}, or longer sequences: keys and values are exchanged while "
            "attention computes already, as far as that goes."
        )
    flag = flags(ranks, "`--cp-comm-type p2p`, core 0.10 on")
    known = "" if kind is not None else ", if they are not"
    return f"Exchange keys and values while attention computes {flag}{known}, or {smaller}."


def _embedding(ranks: Sequence[RankResult]) -> str:
    return _EMBEDDING.format(flag=flags(ranks, "`--untie-embeddings-and-output-weights`"))


def _whole_model(ranks: Sequence[RankResult]) -> str:
    without = "no `--log-params-norm`, no `--log-num-zeros-in-grad`"
    return _WHOLE_MODEL.format(flag=flags(ranks, without))
