# SPDX-License-Identifier: Apache-2.0
"""The answer to "why does my job hang": who is at fault, what each rank does, in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from megatron.torch_trace.analysis.communication.dimensions import dimension_of
from megatron.torch_trace.flight_recorder import early_records
from megatron.torch_trace.flight_recorder.call_names import call_words
from megatron.torch_trace.flight_recorder.hang_files import (
    LastHang,
    hang_files,
    read_last_hang,
)
from megatron.torch_trace.flight_recorder.joined.at_fault import ranks_at_fault
from megatron.torch_trace.flight_recorder.joined.blame import Blame, Cause
from megatron.torch_trace.flight_recorder.joined.waiting import Joined
from megatron.torch_trace.flight_recorder.late_records import (
    as_stopped,
    at_one_moment,
    late_ranks,
    late_sentence,
)
from megatron.torch_trace.flight_recorder.nobody_at_fault import nobody_at_fault, what_to_do
from megatron.torch_trace.flight_recorder.positions import (
    GPU,
    Position,
    blames_by_position,
    position_of,
)
from megatron.torch_trace.flight_recorder.record import Call, FlightRecord
from megatron.torch_trace.flight_recorder.record_file import read_records
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
        position: where its CPU is, if it has left a hang record.
    """

    rank: int
    state: str
    call: Call | None
    words: str
    dimension: str
    pending: int
    position: Position | None = None


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
    """Join the records of all ranks and say who is at fault.

    Args:
        path: a run whose ranks have left hang records; or a folder with the flight records of a
            job, or the files.

    Returns:
        State of each rank, and the ranks at fault with how that is known; docs/hang.md says how
        they are found. A file that is no record is in `skipped` with its reason.

    Raises:
        UsageError: there is no record, or a rank has two.
    """
    paths = [path] if isinstance(path, (str, Path)) else list(path)
    files = hang_files(paths)
    if files:
        return _of_a_run(read_last_hang(files))
    records, skipped = read_records(paths)
    joined = Joined(records)
    blames = ranks_at_fault(joined)
    everyone = sorted({*joined.records, *joined.absent})
    states = tuple(_state(rank, joined) for rank in everyone)
    verdict = " ".join(_sentences(blames, joined, {})) or nobody_at_fault(joined)
    damaged = tuple(one.path for one in records if one.damaged)
    advice = _advice(blames) or what_to_do(verdict, joined)
    return HangAnswer(states, blames, verdict, advice, tuple(skipped), damaged)


def _of_a_run(last: LastHang) -> HangAnswer:
    """By flight records where there are any, and by Python stacks."""
    positions = {rank: position_of(record) for rank, record in last.records.items()}
    flights, late = [*at_one_moment(last)], late_ranks(last)
    if any(one.calls for one in flights):
        # A rank whose torch did not answer, or whose record is damaged, may wait in anything.
        known = {*last.absent, *(one.rank for one in flights)}
        silent = [rank for rank in range(last.world_size) if rank not in known]
        flights += [FlightRecord(Path(), rank, {}, (), "", damaged=True) for rank in silent]
    joined = Joined(flights, last.absent)
    at_work = early_records.written_at_work(last)
    by_flight = ranks_at_fault(joined)
    # What is pending tells more than where a CPU is, which may be ahead of the GPU.
    told = not last.absent and positions.keys() <= joined.records.keys() and joined.is_told
    blames = () if at_work else by_flight or (() if told else blames_by_position(last, positions))
    blames = tuple(as_stopped(one, joined) if one.rank in late else one for one in blames)
    states = tuple(
        _state_by_position(position, _state(rank, joined) if rank in joined.records else None)
        if (position := positions.get(rank)) is not None
        else RankState(rank, MISSING, None, "", "", 0)
        for rank in range(last.world_size)
    )
    named = " ".join(_sentences(blames, joined, positions))
    verdict = at_work or named or nobody_at_fault(joined, last, positions)
    advice = early_records.ADVICE if at_work else _advice(blames, positions)
    advice = advice or what_to_do(verdict, joined) or (_ADVICE[Cause.STOPPED] if late else "")
    damaged = last.damaged + tuple(one.path for one in last.flights if one.damaged)
    said = f"{verdict} {late_sentence(late)}".rstrip()
    return HangAnswer(states, blames, said, advice, last.skipped, damaged)


def _state_by_position(position: Position, state: RankState | None) -> RankState:
    if state is not None and state.call is not None:
        return replace(state, position=position)
    kind = WAITING if position.collective else RUNNING
    return RankState(position.record.rank, kind, None, position.collective, "", 0, position)


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


def _sentences(
    blames: Sequence[Blame], joined: Joined, positions: dict[int, Position]
) -> Iterable[str]:
    """Blames of the same kind together, so that a host of eight ranks is one sentence."""
    for cause in Cause:
        mine = [one for one in blames if one.cause is cause]
        if cause in _TOGETHER and mine:
            yield _together(mine, joined, positions)
        else:
            yield from (_alone(one, joined) + _and_is(one, positions) for one in mine)


def _and_is(blame: Blame, positions: dict[int, Position]) -> str:
    position = positions.get(blame.rank)
    if position is None or blame.cause not in _WAIT_ELSEWHERE:
        return ""
    word = "for" if position.collective == GPU else "in"
    waits = f"waits {word} {position.collective}" if position.collective else "is"
    return f" It {waits} {position.words}."


def _are_elsewhere(who: tuple[int, ...], positions: dict[int, Position]) -> str:
    """`it is in dataloader.py:88 (...)`, as far as hang records tell."""
    known = [(rank, positions[rank].words) for rank in who if rank in positions]
    if not known:
        return "their CPUs are elsewhere" if len(who) > 1 else "its CPU is elsewhere"
    if len(who) == 1:
        return f"it is {known[0][1]}"
    if len({words for _, words in known}) == 1:
        return f"they are {known[0][1]}"
    more = ", ..." if len(known) > _MOST_PLACES else ""
    return "; ".join(f"rank {rank} is {words}" for rank, words in known[:_MOST_PLACES]) + more


_MOST_PLACES = 4
_TOGETHER = (Cause.STOPPED, Cause.NO_FILE, Cause.NOT_IN_A_COLLECTIVE)
_WAIT_ELSEWHERE = (Cause.NEVER_CALLED, Cause.LEFT_ORDER)


def _together(blames: Sequence[Blame], joined: Joined, positions: dict[int, Position]) -> str:
    who = tuple(one.rank for one in blames)
    waits = sorted({rank for one in blames for rank in one.waits})
    first = min((one.call for one in blames), key=lambda call: call.created)
    several = len(who) > 1
    what = call_words(first, joined.groups)
    if blames[0].cause is Cause.NO_FILE:
        record = "hang record" if positions else "flight record"
        did = f"{'have' if several else 'has'} left no {record}"
    elif blames[0].cause is Cause.STOPPED:
        did = "did not run when the others wrote their records"
    else:
        did = f"{'are' if several else 'is'} in no collective: {_are_elsewhere(who, positions)}"
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
    if one.cause is Cause.LEFT_ORDER:
        return (
            f"Rank {one.rank} calls {what} where it usually calls {one.usual}, and {others} "
            f"{wait} for it."
        )
    return f"Rank {one.rank} never called {what}, in which {others} {wait}."


def _rank(numbers: tuple[int, ...]) -> str:
    return f"{'Ranks' if len(numbers) > 1 else 'Rank'} {rank_list(numbers)}"


def _advice(blames: Sequence[Blame], positions: dict[int, Position] | None = None) -> str:
    causes = {one.cause for one in blames}
    advice = _ADVICE | ({Cause.NOT_IN_A_COLLECTIVE: _STACKS} if positions else {})
    if sum(one.cause is Cause.NOT_IN_A_COLLECTIVE for one in blames) > 1:
        several = _STACKS_OF_SEVERAL if positions else _LOOK_AT_SEVERAL
        advice[Cause.NOT_IN_A_COLLECTIVE] = several
    said = [advice[cause] for cause in Cause if cause in causes]
    return " ".join(said)


_STACKS = "The Python stacks of all its threads are in the rank's file in `hangs/`."
_STACKS_OF_SEVERAL = "The Python stacks of all their threads are in the ranks' files in `hangs/`."
_LOOK_AT_SEVERAL = (
    "Look at the Python stacks of these processes (`py-spy dump --pid PID`): data loader, a lock, "
    "a checkpoint, a debugger."
)


_ADVICE = {
    Cause.STOPPED: (
        "Look for what stopped the process: SIGSTOP, a debugger, a host that was frozen or out of "
        "memory (`dmesg`). It runs again, and the training may go on."
    ),
    Cause.NO_FILE: (
        "Check whether the process or the host is gone (log of the rank, `sacct`, `dmesg`)."
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
    Cause.LEFT_ORDER: (
        "Look for a branch that skips a collective on that rank, or calls one more, in this "
        "iteration."
    ),
}
