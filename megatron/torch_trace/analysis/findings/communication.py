# SPDX-License-Identifier: Apache-2.0
"""Findings about communication that nothing hides."""

from __future__ import annotations

from collections.abc import Iterator

from megatron.torch_trace.analysis.findings.shares import (
    has_flag,
    known,
    mean_share,
    over,
    percent,
    severity,
)
from megatron.torch_trace.analysis.findings.stragglers import DIMENSION_NAMES
from megatron.torch_trace.analysis.results import Analysis, Finding, RankResult

_LEAST = 0.03
"""Of the window: an iteration differs from the next by as much."""
_MOSTLY = 0.6
"""From here on tuning the transfer cannot gain more than ending the waiting."""
_BARRIERS = 0.01
"""Of the window; little, for it is lost for nothing."""

_ADVICE = {
    "tp": "Try `--sequence-parallel` and `--tp-comm-overlap`, or a smaller tensor-parallel size.",
    "dp": "Try `--overlap-grad-reduce` and, with `--use-distributed-optimizer`, "
    "`--overlap-param-gather`.",
    "pp": "Try `--num-layers-per-virtual-pipeline-stage`, with which Megatron overlaps sends and "
    "receives with compute, and more micro-batches.",
    "cp": "Try another `--cp-comm-type` (p2p overlaps with attention), or a smaller "
    "context-parallel size.",
    "ep": "Try `--overlap-moe-expert-parallel-comm`, or `--moe-token-dispatcher-type flex` with "
    "DeepEP; `--moe-router-load-balancing-type aux_loss` if experts are uneven.",
    "edp": "Try `--overlap-grad-reduce`; expert gradients are reduced in their own groups.",
    "embedding": "The first and the last stage exchange the gradient of the shared embedding: "
    "`--untie-embeddings-and-output-weights` ends that.",
    "mp": "These are norms and checks over the whole model copy: fewer of them "
    "(`--no-check-for-nan-in-loss-and-grad`, no `--log-params-norm`), and ranks that arrive "
    "together.",
    "default": "These are not the model's own: look for logging, checks and barriers in every "
    "iteration, and raise `--log-interval`.",
    "unknown": "The trace does not tell the process group; torch 2.4 or newer records it.",
}
_OVERLAPPING = (
    "Gradients and parameters are overlapped already: more work to hide them behind (larger "
    "`--micro-batch-size` or more accumulation), or other buckets (`--ddp-bucket-size`)."
)
_ONE_GROUP = (
    "The job has one group for everything: fewer and larger exchanges (gradient accumulation, "
    "`bucket_cap_mb` of DDP) give compute more time to hide them."
)
_WAITING = "It is waiting, not transfer: find out why ranks arrive late before tuning the network."
_CHANGING = (
    "It is waiting, not transfer, and not always the same rank comes last: look for what "
    "holds up all CPUs in turn (launches, Python) or for uneven work (experts, sequence lengths)."
)


def exposed_communication(analysis: Analysis) -> Iterator[Finding]:
    """One finding for each dimension that costs time."""
    ranks = known(analysis)
    names = {total.dimension for rank in ranks for total in rank.dimensions}
    for dimension in sorted(names):
        concerned = [r for r in ranks if any(t.dimension == dimension for t in r.dimensions)]
        share = mean_share(ranks, lambda r, d=dimension: _exposed(r, d))  # type: ignore[misc]
        if share < _LEAST:
            continue
        waiting = _waiting_share(concerned, dimension)
        mostly_waits = waiting is not None and waiting >= _MOSTLY
        name = DIMENSION_NAMES.get(dimension, dimension).capitalize()
        tail = ""
        if waiting is not None:
            tail = f"; {percent(waiting)} of that communication is waiting for other ranks"
        yield Finding(
            f"exposed_communication_{dimension}",
            severity(share),
            f"{name} communication is exposed for {percent(share)} of the window "
            f"({over(ranks)}){tail}.",
            {
                "dimension": dimension,
                "share": share,
                "exposed_ns": {rank.rank: _exposed(rank, dimension) for rank in concerned},
                "waiting_share": waiting,
            },
            _waiting(analysis, dimension) if mostly_waits else _advice(dimension, ranks),
            share,
        )


def _exposed(rank: RankResult, dimension: str) -> int:
    return sum(t.exposed_ns for t in rank.dimensions if t.dimension == dimension)


def _waiting_share(ranks: list[RankResult], dimension: str) -> float | None:
    rows = [
        row
        for rank in ranks
        for row in rank.communication
        if row.dimension == dimension and row.wait_ns is not None
    ]
    time = sum(row.time_ns for row in rows)
    return min(1.0, sum(row.wait_ns or 0 for row in rows) / time) if time else None


def _waiting(analysis: Analysis, dimension: str) -> str:
    worst = [one for one in analysis.stragglers if one.dimension == dimension]
    return _WAITING if any((one.share_there or 0) >= _MOSTLY for one in worst) else _CHANGING


def _advice(dimension: str, ranks: list[RankResult]) -> str:
    if dimension == "dp" and has_flag(ranks, "--overlap-grad-reduce"):
        return _OVERLAPPING
    if dimension == "dp" and any(_overlapped(rank) > 0.05 for rank in ranks):
        # No command line was recorded, but something of it runs beside compute.
        return f"{_ADVICE['dp']} If they are on: {_OVERLAPPING[0].lower()}{_OVERLAPPING[1:]}"
    if dimension == "default" and all(
        total.dimension in ("default", "unknown") for rank in ranks for total in rank.dimensions
    ):
        return _ONE_GROUP
    return _ADVICE.get(dimension, _ADVICE["unknown"])


def _overlapped(rank: RankResult) -> float:
    totals = [t for t in rank.dimensions if t.dimension == "dp"]
    time = sum(t.time_ns for t in totals)
    return 1 - sum(t.exposed_ns for t in totals) / time if time else 0.0


def barriers(analysis: Analysis) -> Iterator[Finding]:
    """Timers that synchronise all ranks destroy the overlap that is being measured."""
    ranks = known(analysis)
    rows = {
        rank.rank: [row for row in rank.communication if row.collective == "barrier"]
        for rank in ranks
    }
    steps = max((len(rank.steps) for rank in ranks), default=0) or 1
    calls = max((sum(row.calls for row in found) for found in rows.values()), default=0)
    exposed = {rank: sum(row.exposed_ns for row in found) for rank, found in rows.items()}
    share = mean_share(ranks, lambda rank: exposed[rank.rank])
    level = _timing_level(ranks)
    if share < _BARRIERS and not (level and calls):
        return
    yield Finding(
        "barriers",
        severity(share),
        f"{calls / steps:.3g} barriers in each iteration take {percent(share)} of it "
        f"({over(ranks)})" + (f", with `--timing-log-level {level}`." if level else "."),
        {"barriers_per_step": calls / steps, "exposed_ns": exposed, "share": share},
        "While you look at overlap keep `--timing-log-level 0`, or give "
        "`--no-barrier-with-level-1-timing`: Megatron's timers wait for all ranks.",
        share,
    )


def _timing_level(ranks: list[RankResult]) -> int:
    for rank in ranks:
        for word, value in zip(rank.argv, [*rank.argv[1:], ""], strict=False):
            if word == "--timing-log-level" and value.isdecimal():
                return int(value)
            if word.startswith("--timing-log-level=") and word.split("=")[1].isdecimal():
                return int(word.split("=")[1])
    return 0


RULES = (exposed_communication, barriers)
