# SPDX-License-Identifier: Apache-2.0
"""What all ranks' torch.compile did again in an interval, and the one time that this is said."""

from __future__ import annotations

from collections.abc import Sequence

from megatron.torch_profile.log import Slug
from megatron.torch_profile.metrics.across_ranks import largest
from megatron.torch_profile.record.compilations import COUNTS
from megatron.torch_trace.wording import counted

_RECOMPILES, _BREAKS, _LIMITS, _REFUSED = range(len(COUNTS))


def values(rows: Sequence[Sequence[float]]) -> dict[str, float]:
    """`compile/<count>` of the rank that has most of it; a rank that compiles holds up the others.

    Args:
        rows: shape [world size, `COUNTS`]; NaN where unknown.
    """
    return {
        f"compile/{name}": largest([row[index] for row in rows])
        for index, name in enumerate(COUNTS)
    }


class Complaints:
    """Says each trouble once in a training."""

    def __init__(self) -> None:
        self._compiled = False
        self._refused = False

    def of(self, rows: Sequence[Sequence[float]], *, warm: bool) -> dict[Slug, str]:
        """New trouble of an interval.

        Args:
            rows: shape [world size, `COUNTS`]; NaN where unknown.
            warm: whether everything should have been compiled before.
        """
        lines: dict[Slug, str] = {}
        again = [sum(row[index] for index in (_RECOMPILES, _BREAKS, _LIMITS)) for row in rows]
        if warm and not self._compiled and any(count > 0 for count in again):
            self._compiled = True
            rank = again.index(largest(again))
            recompiles, breaks, limits = (int(n) for n in rows[rank][:_REFUSED])
            happened = [
                *([counted(recompiles, "recompilation")] if recompiles else []),
                *([counted(breaks, "graph break")] if breaks else []),
                *([f"{counted(limits, 'function')} at the recompile limit"] if limits else []),
            ]
            lines[Slug.RECOMPILED] = (
                f"torch.compile was at work on rank {rank} since the last log: "
                f"{', '.join(happened)}; TORCH_LOGS=recompiles,graph_breaks says why"
            )
        refused = [rank for rank, row in enumerate(rows) if row[_REFUSED] > 0]
        if refused and not self._refused:
            self._refused = True
            who = f"{counted(len(refused), 'rank')}, such as rank {refused[0]}"
            if len(refused) == 1:
                who = f"rank {refused[0]}"
            lines[Slug.FUSED_KERNEL_REFUSED] = (
                f"a fused kernel refused its inputs on {who}; the warning in the log of rank "
                f"{refused[0]} names the types"
            )
        return lines
