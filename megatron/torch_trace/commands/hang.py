# SPDX-License-Identifier: Apache-2.0
"""`torch-trace hang`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from megatron.torch_trace import wording
from megatron.torch_trace.commands import options, terminal
from megatron.torch_trace.errors import DamagedTraceError
from megatron.torch_trace.format.json_text import text_of

if TYPE_CHECKING:
    from rich.console import Console

    from megatron.torch_trace.flight_recorder.answer import HangAnswer, RankState

_MOST_RANKS = 32


@click.command("hang", epilog=options.exit_status(s4=""))
@options.paths
@options.as_json
def command(paths: tuple[str, ...], as_json: bool) -> None:
    """Say why a job hangs: which ranks are at fault, and who waits for whom.

    \b
    torch-trace hang traces/20261128-173012
    torch-trace hang flight_records/

    PATH is a run whose ranks have left hang records, which --torch-profile-on-hang writes. Or it is
    a folder with the flight records of all ranks, which torch writes when a collective times out
    (TORCH_FR_BUFFER_SIZE=2000, TORCH_NCCL_DUMP_ON_TIMEOUT=1,
    TORCH_FR_DUMP_TEMP_FILE=FOLDER/comm_lib_trace_rank_). Flight records are pickles or JSON.
    They are read as data, and nothing in them is run.
    """
    from megatron.torch_trace.flight_recorder.answer import hang

    answer = hang(paths)
    if as_json:
        click.echo(text_of(_document(answer)))
    else:
        _print(terminal.console(), answer)
    if answer.damaged:
        names = ", ".join(map(str, answer.damaged))
        raise DamagedTraceError(f"damaged: {names}; what these ranks wait in may be unknown.")


def _print(console: Console, answer: HangAnswer) -> None:
    terminal.sentence(console, f"[bold]{terminal.literal(answer.verdict)}[/]")
    if answer.advice:
        terminal.sentence(console, terminal.literal(answer.advice))
    console.print()
    _print_ranks(console, answer)
    if answer.skipped:
        reasons = {reason for _, reason in answer.skipped}
        why = f" ({terminal.literal(reasons.pop())})" if len(reasons) == 1 else ""
        terminal.sentence(
            console, f"Skipped {wording.counted(len(answer.skipped), 'other file')}{why}."
        )


def _print_ranks(console: Console, answer: HangAnswer) -> None:
    where = "is in" if any(one.position for one in answer.ranks) else "called in"
    table = terminal.table("rank", "state", "first pending call", "pending", where)
    table.columns[3].justify = "right"
    culprits = {*answer.culprits}
    shown = sorted(answer.ranks, key=lambda one: (one.rank not in culprits, one.rank))
    for one in shown[:_MOST_RANKS]:
        mark = "[bold red]" if one.rank in culprits else ""
        table.add_row(
            f"{mark}{one.rank}",
            f"{mark}{one.state}",
            terminal.literal(one.words),
            f"{one.pending:,}" if one.pending else "",
            terminal.literal(_called_in(one)),
        )
    console.print(table)
    more = len(shown) - _MOST_RANKS
    if more > 0:
        console.print(f"  {wording.counted(more, 'more rank')}: --json has them.")


def _called_in(one: RankState) -> str:
    """The innermost frame outside of torch, or the thread."""
    if one.position is not None:
        return one.position.words.removeprefix("in ")
    if one.call is None:
        return ""
    outside = [frame for frame in one.call.stack if "/torch/" not in frame]
    frame = (outside or [*one.call.stack, one.call.thread])[0]
    return frame.rpartition("/")[2]


def _document(answer: HangAnswer) -> dict[str, Any]:
    return {
        "schema": 1,
        "verdict": answer.verdict,
        "advice": answer.advice,
        "culprits": list(answer.culprits),
        "causes": [
            {"rank": one.rank, "cause": one.cause.value, "waiting_ranks": list(one.waits)}
            for one in answer.blames
        ],
        "ranks": [_rank(one) for one in answer.ranks],
        "damaged_files": [wording.path_text(path) for path in answer.damaged],
        "skipped_files": [
            {"file": wording.path_text(path), "reason": reason} for path, reason in answer.skipped
        ],
    }


def _rank(one: RankState) -> dict[str, Any]:
    call, position = one.call, one.position
    python = position.record.training.stack if position else call.stack if call else ()
    hung = {}
    if position:
        record = position.record
        hung = {
            "iteration": record.iteration,
            "micro_batch": record.micro_batch,
            "spans": list(record.spans),
            "host": record.host,
            "pid": record.pid,
        }
    return {
        "rank": one.rank,
        "state": one.state,
        "collective": call.name if call else one.words or None,
        "dimension": one.dimension or None,
        "group": call.group if call else None,
        "sequence": call.sequence if call else None,
        "sizes": call.sizes if call else None,
        "module": (position.module or None) if position else None,
        "python": list(python),
        "pending": one.pending,
        **hung,
    }
