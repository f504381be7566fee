# SPDX-License-Identifier: Apache-2.0
"""Classes of modules by their FLOPs, and how near to the GPU's peak each of them comes."""

from __future__ import annotations

from dataclasses import dataclass

from megatron.torch_trace.analysis.modules.rows import ModuleRow
from megatron.torch_trace.analysis.results.analysis import RankResult
from megatron.torch_trace.report.figures.peak_ladder import Rung
from megatron.torch_trace.wording import flop_rate, number, percent

_MOST = 12
_PER_TERA = 1e-12


@dataclass(frozen=True, slots=True)
class ModuleLadder:
    """The classes of a rank, the one with most FLOPs on top."""

    caption: str
    rungs: tuple[Rung, ...]
    rest: int
    """Classes with fewer FLOPs, which are not drawn."""


def module_ladder(rank: RankResult, name: str, steps: int) -> ModuleLadder | None:
    """None where FLOPs or the peak are unknown.

    Args:
        rank: whose modules.
        name: what it is called, `rank 0, stage 0`.
        steps: of this rank; FLOPs are those of an iteration.
    """
    known = [(flops, row) for row in rank.module_classes if (flops := _flops(row))]
    known.sort(key=lambda one: -one[0])
    rungs = tuple(_rung(row, flops / max(1, steps)) for flops, row in known[:_MOST])
    if not rungs:
        return None
    title = f"{name[0].upper()}{name[1:]}: modules by their FLOPs, and their share of the peak"
    return ModuleLadder(title, rungs, len(known) - len(rungs))


def _flops(row: ModuleRow) -> int:
    """Of all passes; 0 where they, or the share of the peak, are unknown."""
    parts = (row.flops, row.backward_flops, row.recompute_flops)
    if row.peak_share is None or None in parts:
        return 0
    return sum(part or 0 for part in parts)


def _rung(row: ModuleRow, flops: float) -> Rung:
    share = row.peak_share or 0.0
    return Rung(
        row.type,
        min(1.0, share),
        f"{number(flops * _PER_TERA)} TFLOP, {flop_rate(row.tflops)} TFLOP/s, {percent(share)}",
    )
