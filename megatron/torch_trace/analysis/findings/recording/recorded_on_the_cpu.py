# SPDX-License-Identifier: Apache-2.0
"""A recording with neither GPU work nor launches: the CPU's time is the answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from megatron.torch_trace import wording
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding, RankResult

SLUG = "recorded_on_the_cpu"
_CPU = "cpu"
"""What capture writes as the device of a rank without a GPU."""

_TRAINED = "Train on a GPU to see where the time of a GPU goes."
_RECORDED = (
    "Record the GPU's activity too if training used a GPU (`ProfilerActivity.CUDA` in "
    "torch.profiler, `--torch-profile-activities cpu cuda` here): all times are times of the CPU."
)


def rule(analysis: Analysis) -> Iterator[Finding]:
    """One for all ranks, by what the recording itself says."""
    ranks = [
        rank
        for rank in analysis.ranks
        if rank.unknown and is_of_the_cpu(rank) and not rank.other_device
    ]
    if not ranks:
        return
    trained = all(rank.device == _CPU for rank in ranks)
    which = "" if len(ranks) == len(analysis.ranks) else f" of {_named(ranks)}"
    yield Finding(
        SLUG,
        "info",
        f"Training{which} ran on the CPU, so all times{which} are times of the CPU."
        if trained
        else f"Only the CPU{which} was recorded: there is neither GPU work nor a launch.",
        {"ranks": [rank.rank for rank in ranks]},
        _TRAINED if trained else _RECORDED,
    )


def _named(ranks: Sequence[RankResult]) -> str:
    numbers = tuple(rank.rank for rank in ranks)
    return ranks[0].name if len(ranks) == 1 else f"ranks {wording.ranks(numbers)}"


def is_of_the_cpu(rank: RankResult) -> bool:
    """Whether the trace of this rank is of the CPU alone."""
    return rank.cpu is not None or rank.device == _CPU
