# SPDX-License-Identifier: Apache-2.0
"""What is said where nothing shows which rank is at fault."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from megatron.torch_trace.flight_recorder.call_names import call_words
from megatron.torch_trace.flight_recorder.hang_files import LastHang
from megatron.torch_trace.flight_recorder.positions import Position
from megatron.torch_trace.flight_recorder.record import Call
from megatron.torch_trace.flight_recorder.waiting import Joined
from megatron.torch_trace.wording import ranks as rank_list

_MOST_WAYS = 4
"""In which ranks call something at the same number, that are said."""
_NOT_FINISHED = (
    "All ranks of every pending collective have called it, with the same sizes: the network or a "
    "GPU does not finish it, or ranks wait for each other in a circle."
)
_LOOK_AT_THE_NETWORK = (
    "Look for errors of the network and of GPUs on the hosts of these ranks (`dmesg`), and for "
    "NCCL's own lines in the log (`NCCL_DEBUG=WARN` in the launch script)."
)


def nobody_at_fault(
    joined: Joined, last: LastHang | None = None, positions: Mapping[int, Position] | None = None
) -> str:
    """The verdict.

    Args:
        joined: flight records.
        last: the hang of a run; None where there are flight records alone.
        positions: of its ranks.
    """
    unlike = " ".join(_sentence(here, joined) for here in joined.unlike())
    if unlike:
        return f"{unlike} Nothing tells which of them is wrong."
    if any(joined.pending.values()):
        return _unread(last, positions or {}) or _silent(joined) or _NOT_FINISHED
    if last is None or positions is None:
        return "Nothing is pending on any rank: the job does not hang in a collective."
    if not any(one.collective for one in positions.values()):
        return "No rank waits in a collective: all of them are slow, or wait for something else."
    return _unread(last, positions) or (
        "All ranks wait in collectives, and no rank differs from most: see where each one waits."
    )


def what_to_do(verdict: str) -> str:
    """The advice that belongs to a verdict of `nobody_at_fault`; empty where there is none."""
    return _LOOK_AT_THE_NETWORK if verdict == _NOT_FINISHED else ""


def _unread(last: LastHang | None, positions: Mapping[int, Position]) -> str:
    """Ranks whose records are damaged may be at fault."""
    if last is None:
        return ""
    known = positions.keys() | {*last.absent}
    unread = tuple(rank for rank in range(last.world_size) if rank not in known)
    if not unread:
        return ""
    one = len(unread) == 1
    return (
        f"{'Rank' if one else 'Ranks'} {rank_list(unread)} may be at fault: "
        f"{'its record is' if one else 'their records are'} damaged, and no other rank differs "
        "from most."
    )


def _silent(joined: Joined) -> str:
    """Ranks whose torch did not tell what they have called may be at fault."""
    silent = tuple(rank for rank, one in sorted(joined.records.items()) if one.damaged)
    if not silent:
        return ""
    return (
        f"{'Ranks' if len(silent) > 1 else 'Rank'} {rank_list(silent)} may be at fault: which "
        "collectives were called there is not known, and no other rank differs from most."
    )


def _sentence(here: Mapping[int, Call], joined: Joined) -> str:
    """`Ranks 0-1 call tensor-parallel all_reduce 7 differently: ...`"""
    ranks = tuple(sorted(here))
    first = call_words(here[ranks[0]], joined.groups)
    return f"Ranks {rank_list(ranks)} call {first} differently: {'; '.join(_ways(here))}."


def _ways(here: Mapping[int, Call]) -> Iterator[str]:
    ways: dict[str, list[int]] = {}
    for rank in sorted(here):
        call = here[rank]
        ways.setdefault(f"{call.name} with {call.sizes or 'no sizes'}", []).append(rank)
    for words, ranks in [*ways.items()][:_MOST_WAYS]:
        yield f"rank{'s' if len(ranks) > 1 else ''} {rank_list(tuple(ranks))} {words}"
    if len(ways) > _MOST_WAYS:
        yield f"and {len(ways) - _MOST_WAYS} more"
