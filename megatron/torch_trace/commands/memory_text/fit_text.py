# SPDX-License-Identifier: Apache-2.0
"""The answer of `torch-trace memory --fit` on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from megatron.torch_trace.allocator.fit.effects import Effect
from megatron.torch_trace.allocator.fit.fitting import Fit, RankFit
from megatron.torch_trace.commands import terminal
from megatron.torch_trace.wording import NONE, size

_MOST_NEEDS = 6


def print_fit(console: Console, fit: Fit | str) -> None:
    """The largest micro-batch, what each one needs, and what flags would free."""
    if isinstance(fit, str):
        terminal.sentence(console, f"What fits is unknown: {terminal.literal(fit)}")
        return
    terminal.sentence(console, _verdict(fit))
    console.print()
    _print_needs(console, fit)
    if fit.measured:
        _print_effects(console, "other run", fit.measured)
    tightest = fit.tightest
    if tightest.effects:
        whose = f"flag, on {_name(tightest)}" if len(fit.ranks) > 1 else "flag"
        _print_effects(console, whose, tightest.effects)


def _verdict(fit: Fit) -> str:
    recorded = fit.ranks[0].shape.micro_batch
    if any(one.room is None for one in fit.ranks):
        return (
            "What fits is unknown, because no trace beside the snapshots has the GPU's memory: "
            "give it with --gpu-memory. Each micro-batch needs:"
        )
    if fit.largest is None:
        return (
            f"Not even micro-batch {recorded} fits, although it was recorded: CUDA and NCCL took "
            "less than is set aside for them below."
        )
    if fit.largest == recorded and not fit.perhaps:
        return f"Micro-batch {recorded} is the largest one that fits."
    perhaps = (
        f" {fit.perhaps} may fit: it does if the prediction has no error."
        if fit.perhaps and fit.perhaps != fit.largest
        else ""
    )
    return (
        f"The largest micro-batch that fits is {fit.largest} (recorded with {recorded}).{perhaps}"
    )


def _print_needs(console: Console, fit: Fit) -> None:
    for one in fit.ranks:
        how = (
            f"measured with micro-batches {one.shape.micro_batch} and {one.measured_with}"
            if one.measured_with
            else "measured in one run"
        )
        terminal.sentence(
            console,
            f"{_name(one).capitalize()}: a sample takes {size(one.per_sample)} at the peak ({how})."
            f"{_room(fit, one)}",
        )
    table = terminal.table("micro-batch", *(_name(one) for one in fit.ranks), right=range(9))
    tried = sorted({need.micro_batch for one in fit.ranks for need in one.needs})
    for micro_batch in _shown(tried):
        cells = []
        for one in fit.ranks:
            need = next((n for n in one.needs if n.micro_batch == micro_batch), None)
            error = f" +-{size(need.error)}" if need and need.error else ""
            cells.append(f"{size(need.bytes)}{error}" if need else "too much")
        table.add_row(str(micro_batch), *cells)
    console.print(table)
    console.print()


def _shown(tried: Sequence[int]) -> list[int]:
    """The first ones and the last ones of many."""
    if len(tried) <= _MOST_NEEDS:
        return list(tried)
    return [*tried[: _MOST_NEEDS // 2], *tried[-_MOST_NEEDS // 2 :]]


def _room(fit: Fit, one: RankFit) -> str:
    if one.room is None or one.rank.facts.capacity is None:
        return ""
    how = "set aside, an assumption" if fit.outside_is_assumed else "measured"
    return (
        f" Torch may have {size(one.room)}: {size(one.rank.facts.capacity)} of the GPU less "
        f"{size(fit.outside)} for CUDA and NCCL ({how})."
    )


def _name(one: RankFit) -> str:
    stage, rank = one.rank.facts.stage, one.rank.answer.rank
    if stage is not None and one.shape.pipeline > 1:
        return f"stage {stage}"
    return "this rank" if rank is None else f"rank {rank}"


def _print_effects(console: Console, title: str, effects: Sequence[Effect]) -> None:
    table = terminal.table(title, "frees", "error", "how it is known", right=(1, 2))
    for one in sorted(effects, key=lambda one: -(one.frees or 0)):
        table.add_row(
            terminal.literal(one.change),
            "unknown" if one.frees is None else size(one.frees) if one.frees else "nothing",
            NONE if one.error is None else size(one.error),
            terminal.literal(one.how),
        )
    console.print(table)
    console.print()
