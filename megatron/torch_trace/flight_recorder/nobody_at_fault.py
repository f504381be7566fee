# SPDX-License-Identifier: Apache-2.0
"""What is said where nothing shows which rank is at fault."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from megatron.torch_trace.flight_recorder.call_names import call_words
from megatron.torch_trace.flight_recorder.hang_files import LastHang
from megatron.torch_trace.flight_recorder.joined.waiting import Joined
from megatron.torch_trace.flight_recorder.positions import Position
from megatron.torch_trace.flight_recorder.record import Call
from megatron.torch_trace.flight_recorder.unsure import unsure_advice, unsure_sentences
from megatron.torch_trace.wording import ranks as rank_list

_MOST_WAYS = 4
"""In which ranks call something at the same number, that are said."""
_NOT_FINISHED = (
    "All ranks of every pending collective have called it, with the same sizes: the network or a "
    "GPU does not finish it, or ranks wait for each other in a circle."
)
_NO_SIGN = (
    "Ranks wait for others, and nothing in the records tells which of them is at fault: see in "
    "what each one waits."
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
    unsure = unsure_sentences(joined)
    if unsure:
        return unsure
    if any(joined.pending.values()):
        return _unread(last, positions or {}) or _silent(joined) or _not_finished(joined)
    if (last is None or positions is None) and joined.absent:
        one = len(joined.absent) == 1
        return (
            f"Nothing is pending on the ranks that have left a record. "
            f"{'Rank' if one else 'Ranks'} {rank_list(joined.absent)} "
            f"{'has' if one else 'have'} left none, and may be at fault."
        )
    if last is None or positions is None:
        return "Nothing is pending on any rank: the job does not hang in a collective."
    if not any(one.collective for one in positions.values()):
        return "No rank waits in a collective: all of them are slow, or wait for something else."
    return _unread(last, positions) or (
        "All ranks wait in collectives, and no rank differs from most: see where each one waits."
    )


def what_to_do(verdict: str, joined: Joined) -> str:
    """The advice that belongs to a verdict of `nobody_at_fault`; empty where there is none."""
    if verdict in (_NOT_FINISHED, _one_is_not_finished(joined)):
        return _LOOK_AT_THE_NETWORK
    return unsure_advice(joined) if verdict == unsure_sentences(joined) else ""


def _not_finished(joined: Joined) -> str:
    fronts = _fronts(joined)
    if all(_all_have_called(joined, call) for call in fronts):
        return _NOT_FINISHED
    return _one_is_not_finished(joined) or _circle(joined) or _NO_SIGN


def _one_is_not_finished(joined: Joined) -> str:
    """Of the oldest pending collective that all have called; empty where there is none."""
    fronts = _fronts(joined)
    called = [call for call in fronts if _all_have_called(joined, call)]
    if not called:
        return ""
    words = call_words(min(called, key=lambda one: one.created), joined.groups)
    return (
        f"All ranks of {words} have called it, with the same sizes: the network or a GPU does not "
        "finish it, and other ranks wait for these."
    )


def _fronts(joined: Joined) -> list[Call]:
    """Each call in which ranks wait first, by whichever of them called it first."""
    waits = [call for group in joined.groups.values() for call in joined.fronts(group).values()]
    found: dict[tuple[str, int, str], Call] = {}
    for call in sorted(waits, key=lambda one: one.created):
        found.setdefault((call.group, call.sequence, call.name), call)
    return [*found.values()]


def _all_have_called(joined: Joined, call: Call) -> bool:
    return all(joined.has_called(rank, call) for rank in joined.groups[call.group].ranks)


def _circle(joined: Joined) -> str:
    steps = [
        f"rank {rank} waits in {call_words(call, joined.groups)}, which rank {other} has not called"
        for rank, call, other in joined.circles.one()
    ]
    if not steps:
        return ""
    more = f"; and {len(steps) - _MOST_WAYS} more" if len(steps) > _MOST_WAYS else ""
    return (
        "Ranks wait for each other in a circle, and nothing tells which of them left the order of "
        f"calls: {'; '.join(steps[:_MOST_WAYS])}{more}."
    )


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
