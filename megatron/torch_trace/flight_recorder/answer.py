# SPDX-License-Identifier: Apache-2.0
"""The answer to "why does my job hang": who is at fault, what each rank does, in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from megatron.torch_trace.analysis.communication.dimensions import ADJECTIVES, dimension_of
from megatron.torch_trace.flight_recorder.record import Call, FlightRecord, Group
from megatron.torch_trace.flight_recorder.record_file import read_records
from megatron.torch_trace.flight_recorder.waiting import Blame, Cause, Joined
from megatron.torch_trace.wording import ranks as rank_list

MISSING, WAITING, RUNNING = "missing", "waiting", "running"
"""A rank without a whole file; one with a call that is not complete; one with nothing pending."""


@dataclass(frozen=True, slots=True)
class RankState:
    """What one rank does.

    Args:
        rank: global rank.
        state: `missing`, `waiting` or `running`.
        call: its first pending call; None if there is none.
        words: that call: `tensor-parallel all_reduce 8,112`; empty if there is none.
        dimension: of the call's group, such as tp.
        pending: how many calls are pending.
    """

    rank: int
    state: str
    call: Call | None
    words: str
    dimension: str
    pending: int


@dataclass(frozen=True, slots=True)
class HangAnswer:
    """Of one job.

    Args:
        ranks: by rank.
        blames: who is at fault and how that is known.
        verdict: the same in sentences.
        advice: what to do next.
        skipped: files that are no flight records, with the reason.
        damaged: records that are not whole.
    """

    ranks: tuple[RankState, ...]
    blames: tuple[Blame, ...]
    verdict: str
    advice: str
    skipped: tuple[tuple[Path, str], ...]
    damaged: tuple[Path, ...] = ()

    @property
    def culprits(self) -> tuple[int, ...]:
        return tuple(one.rank for one in self.blames)


def hang(path: Path | str | Iterable[Path | str]) -> HangAnswer:
    """Join the flight records of all ranks and say who is at fault.

    Args:
        path: a folder with the records of a job, or the files.

    Raises:
        UsageError: there is no record, or a rank has two.
    """
    paths = [path] if isinstance(path, (str, Path)) else list(path)
    records, skipped = read_records(paths)
    joined = Joined(records)
    blames = joined.blames()
    everyone = sorted({*joined.records, *joined.absent})
    states = tuple(_state(rank, joined) for rank in everyone)
    verdict = " ".join(_sentences(blames, joined)) or _no_fault(records, joined)
    damaged = tuple(one.path for one in records if one.damaged)
    return HangAnswer(states, blames, verdict, _advice(blames), tuple(skipped), damaged)


def call_words(call: Call, groups: dict[str, Group]) -> str:
    """`tensor-parallel all_reduce 8,112`; of a group that nobody described `all_reduce 3 of group
    17`."""
    group = groups.get(call.group, Group(call.group, "", ()))
    name = call.name.strip("_")
    if call.is_transfer:
        name = name.partition(" ")[0]
        where = "" if call.peer is None else f" {'to' if name == 'send' else 'from'} {call.peer}"
        return f"{_adjective(group)} {name}{where}"
    return f"{_adjective(group)} {name} {call.sequence:,}"


def _adjective(group: Group) -> str:
    dimension = dimension_of(group.description)
    known = ADJECTIVES.get(dimension)
    return known or (group.description or f"group {group.name}")


def _state(rank: int, joined: Joined) -> RankState:
    calls = [call for mine in joined.pending.get(rank, {}).values() for call in mine]
    if not calls:
        record = joined.records.get(rank)
        state = MISSING if record is None or record.damaged else RUNNING
        return RankState(rank, state, None, "", "", 0)
    first = min(calls, key=lambda one: one.order)
    group = joined.groups[first.group]
    words = call_words(first, joined.groups)
    return RankState(rank, WAITING, first, words, dimension_of(group.description), len(calls))


def _sentences(blames: Sequence[Blame], joined: Joined) -> Iterable[str]:
    """Blames of the same kind together, so that a host of eight ranks is one sentence."""
    for cause in Cause:
        mine = [one for one in blames if one.cause is cause]
        if cause in (Cause.NO_FILE, Cause.NOT_IN_A_COLLECTIVE) and mine:
            yield _together(mine, joined)
        else:
            yield from (_alone(one, joined) for one in mine)


def _together(blames: Sequence[Blame], joined: Joined) -> str:
    who = tuple(one.rank for one in blames)
    waits = sorted({rank for one in blames for rank in one.waits} - {*who})
    first = min((one.call for one in blames), key=lambda call: call.created)
    several = len(who) > 1
    what = call_words(first, joined.groups)
    if blames[0].cause is Cause.NO_FILE:
        did = f"{'have' if several else 'has'} left no flight record"
    else:
        are = "are" if several else "is"
        did = f"{are} in no collective: {'their CPUs are' if several else 'its CPU is'} elsewhere"
    return (
        f"{_rank(who)} {did}, and {_rank(tuple(waits)).lower()} "
        f"{'wait' if len(waits) > 1 else 'waits'} for {'them' if several else 'it'} "
        f"(first in {what})."
    )


def _alone(one: Blame, joined: Joined) -> str:
    what = call_words(one.call, joined.groups)
    others = _rank(one.waits).lower()
    if one.cause is Cause.BEHIND:
        have = "have" if len(one.waits) > 1 else "has"
        return f"The GPU of rank {one.rank} is stuck in {what}, which {others} {have} completed."
    if one.cause is Cause.DIFFERENT:
        return (
            f"Rank {one.rank} calls {what} with {one.call.sizes or 'no sizes'}, where {others} "
            f"{'call' if len(one.waits) > 1 else 'calls'} {one.usual}."
        )
    wait = "wait" if len(one.waits) > 1 else "waits"
    return f"Rank {one.rank} never called {what}, in which {others} {wait}."


def _rank(numbers: tuple[int, ...]) -> str:
    return f"{'Ranks' if len(numbers) > 1 else 'Rank'} {rank_list(numbers)}"


def _no_fault(records: Sequence[FlightRecord], joined: Joined) -> str:
    if not any(joined.pending[one.rank] for one in records):
        return "Nothing is pending on any rank: the job does not hang in a collective."
    return (
        "All ranks of every pending collective have called it, with the same sizes: the network or "
        "a GPU does not finish it, or ranks wait for each other in a circle."
    )


def _advice(blames: Sequence[Blame]) -> str:
    causes = {one.cause for one in blames}
    said = [_ADVICE[cause] for cause in Cause if cause in causes]
    return " ".join(said)


_ADVICE = {
    Cause.NO_FILE: (
        "Look whether the rank's process or its host is gone (its log, `sacct`, `dmesg`)."
    ),
    Cause.NOT_IN_A_COLLECTIVE: (
        "Look at the Python stack of that process (`py-spy dump --pid PID`): data loader, a lock, "
        "a checkpoint, a debugger."
    ),
    Cause.BEHIND: (
        "Look for Xid errors of that GPU (`dmesg`, `nvidia-smi -q`), and drain its node if there "
        "are any."
    ),
    Cause.DIFFERENT: "Look for a branch in the code that depends on the rank or on its data.",
    Cause.NEVER_CALLED: (
        "Look for a branch that skips the collective on that rank, and for ranks that call "
        "collectives of two groups in different orders."
    ),
}
