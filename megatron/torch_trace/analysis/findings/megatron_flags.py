# SPDX-License-Identifier: Apache-2.0
"""Megatron's flags in advice: an instruction to who trains with Megatron, an example to others.

Advice says what to do first, in words that everybody understands, and then the flag:

    with Megatron     Capture the iteration in CUDA graphs (`--cuda-graph-impl`).
    with anything     Capture the iteration in CUDA graphs (in Megatron: `--cuda-graph-impl`).

Only what the recorded command line does not have already is advised. A flag that not every Megatron
has is named with the core version that brought it. What Megatron refuses together is never advised
together; its checks are in `validate_args` and in the `__post_init__` of `TransformerConfig`.
"""

from __future__ import annotations

from collections.abc import Sequence

from megatron.torch_trace.analysis.communication.dimensions import is_megatron_group
from megatron.torch_trace.analysis.results.analysis import RankResult
from megatron.torch_trace.analysis.timeline import command_line
from megatron.torch_trace.analysis.timeline.command_line import INTERLEAVING

_SIZES = ("--tensor-model-parallel-size", "--micro-batch-size", "--use-mcore-models")
"""Flags that nearly every launch script of Megatron has, and few other programs."""


def has_flag(ranks: Sequence[RankResult], flag: str) -> bool:
    """Whether the recorded run has `flag`, or has set by other means what it sets."""
    return any(command_line.has(one, flag) for one in _settings(ranks))


def flag_value(ranks: Sequence[RankResult], flag: str) -> str | None:
    """What the recorded run gives to `flag`; None if it does not."""
    values = (command_line.value_of(one, flag) for one in _settings(ranks))
    return next((value for value in values if value is not None), None)


def _settings(ranks: Sequence[RankResult]) -> dict[tuple[str, ...], None]:
    """What the ranks have set, each once: thousands of ranks have the same command line."""
    return dict.fromkeys(rank.settings for rank in ranks)


def interleaves(ranks: Sequence[RankResult]) -> bool:
    """Whether the recorded command line asks for virtual pipeline stages."""
    return any(has_flag(ranks, flag) for flag in INTERLEAVING)


def is_megatron(ranks: Sequence[RankResult]) -> bool:
    """Whether Megatron's own loop trains, so that its flags can be given: capture has written the
    name of the loop, and of other traces the command line and the groups tell."""
    return any(_is_megatron(rank) for rank in ranks)


def _is_megatron(rank: RankResult) -> bool:
    if rank.loop is not None:
        return rank.loop == command_line.MEGATRON
    return (
        any("megatron" in word.lower() for word in rank.argv)
        or any(command_line.has(rank.argv, flag) for flag in _SIZES)
        or bool(rank.coordinates)
        or any(is_megatron_group(row.group) for row in rank.communication)
        or any("megatron/" in row.function for row in rank.host.python)
    )


def flags(ranks: Sequence[RankResult], text: str) -> str:
    """`(...)` around flags of Megatron, which says whose they are to who uses something else."""
    return f"({text})" if is_megatron(ranks) else f"(in Megatron: {text})"
