# SPDX-License-Identifier: Apache-2.0
"""Where a rank is, by the Python stack of the thread that trains.

Enough where torch keeps no flight record (gloo), and where a rank is in no collective. Where it
waits for the GPU, the stack alone does not tell in which collective.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from megatron.torch_trace.flight_recorder.hang_files import LastHang
from megatron.torch_trace.flight_recorder.joined.blame import Blame, Cause
from megatron.torch_trace.flight_recorder.record import Call
from megatron.torch_trace.format.hang_records import HangRecord

_COLLECTIVES = re.compile(r"/torch/(distributed/|overrides\.py)")
GPU = "the GPU"
"""What a rank waits for where its code asks for a number that is computed there."""
_TRANSFERS = "p2p_communication.py"
_WAITS = re.compile(r"\.(wait|synchronize|item|tolist|cpu)\(")
_ASKED = re.compile(r"rerun_state_machine\.py:\d+ validate_result$")
"""Megatron asks here whether the loss is a number (`if result_rejected:`): it is on the GPU. Most
trainings wait for the GPU in this line, and nothing in its text is a call."""
_LIBRARIES = re.compile(
    r"/lib/python3[\d.]*/(?!site-packages|dist-packages)|/torch/(?!utils/data/)[\w/]+\.py:"
)
_WORK = (
    ("data loader", re.compile(r"dataloader|data_iterator|__next__|get_batch", re.IGNORECASE)),
    ("checkpoint", re.compile(r"checkpoint", re.IGNORECASE)),
)
_WRAPPERS = ("wrapper", "wait", "handle_torch_function")


@dataclass(frozen=True, slots=True)
class Position:
    """Where one rank is.

    Args:
        record: of the rank.
        collective: that it waits in, such as `all_reduce`; empty where it waits in none.
        frame: `file:line function`, the innermost that tells something.
    """

    record: HangRecord
    collective: str
    frame: str

    @property
    def words(self) -> str:
        """`dataloader.py:88 (__next__, data loader), micro-batch 3, in decoder.layers.7: MLP`."""
        if not self.frame:
            return "at a line that its record does not tell"
        where, _, function = self.frame.rpartition(" ")
        work = [] if self.collective else self._work()
        said = f"in {where.rpartition('/')[2]} ({', '.join([function, *work])})"
        if self.record.micro_batch is not None:
            said += f", micro-batch {self.record.micro_batch}"
        said = f"{said}, in {self.module}" if self.module else said
        return f"{said}, and a thread of it keeps Python's lock" if self.record.locked else said

    @property
    def module(self) -> str:
        """The innermost module; empty outside of all."""
        return self.record.modules[-1] if self.record.modules else ""

    def _work(self) -> list[str]:
        stack = self.record.training.stack
        return [name for name, pattern in _WORK if any(map(pattern.search, stack))][:1]


def position_of(record: HangRecord) -> Position:
    """Where a rank is."""
    thread = record.training
    if record.locked:
        return Position(record, "", _first(thread.stack))
    inside = 0
    while inside < len(thread.stack) and _COLLECTIVES.search(thread.stack[inside]):
        inside += 1
    if inside:
        names = [frame.rpartition(" ")[2] for frame in thread.stack[:inside]]
        known = [name for name in reversed(names) if name not in _WRAPPERS]
        name = known[0].strip("_") if known else "a collective"
        return Position(record, name, _first(thread.stack[inside:]))
    waits = _WAITS.search(thread.code) if thread.stack else None
    if waits:
        what = "a collective" if waits[1] == "wait" else GPU
        if _TRANSFERS in thread.stack[0]:
            what = "a pipeline transfer"
        return Position(record, what, _first(thread.stack))
    asks = thread.stack and _ASKED.search(thread.stack[0]) and thread.code.startswith("if ")
    return Position(record, GPU if asks else "", _first(thread.stack))


def blames_by_position(hang: LastHang, positions: dict[int, Position]) -> tuple[Blame, ...]:
    """Ranks at fault by stacks alone.

    Who has left no record, or is in no collective, while others wait; else the few that wait in
    another collective than most.
    """
    waiting = {rank: position for rank, position in positions.items() if position.collective}
    if not waiting:
        return ()
    call = _call(min(waiting.values(), key=lambda one: one.record.began_ns))
    waits = tuple(waiting)
    blames = [Blame(rank, Cause.NO_FILE, call, waits) for rank in hang.absent]
    blames += [
        Blame(rank, Cause.NOT_IN_A_COLLECTIVE, call, waits)
        for rank in positions
        if rank not in waiting
    ]
    return tuple(blames) or tuple(_elsewhere(waiting))


def _elsewhere(waiting: dict[int, Position]) -> list[Blame]:
    kinds = Counter((one.collective, one.frame) for one in waiting.values())
    usual, most = kinds.most_common(1)[0]
    if 2 * most <= len(waiting) or not all(name.startswith(_ALIKE) for name, _ in kinds):
        return []
    there = [one for one in waiting.values() if (one.collective, one.frame) == usual]
    others = tuple(one.record.rank for one in there)
    return [
        Blame(rank, Cause.NEVER_CALLED, _call(there[0]), others)
        for rank in waiting
        if rank not in others
    ]


_ALIKE = ("all_", "reduce", "broadcast", "barrier", "monitored_barrier")
"""Collectives in which ranks of one job wait together; pipeline stages wait in different ones."""


def _call(position: Position) -> Call:
    record = position.record
    return Call(
        order=0,
        group="",
        sequence=0,
        name=position.collective,
        sizes="",
        state="started",
        created=record.began_ns,
        thread=record.training.name,
        is_transfer=False,
        peer=None,
        stack=(position.frame, *record.training.stack),
    )


def _first(stack: tuple[str, ...]) -> str:
    """The innermost frame outside of Python's own library and of torch, whose data loader counts;
    the innermost where there is none."""
    outside = [frame for frame in stack if not _LIBRARIES.search(frame)]
    return (outside or [*stack, ""])[0]
