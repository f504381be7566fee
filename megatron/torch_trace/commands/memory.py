# SPDX-License-Identifier: Apache-2.0
"""`torch-trace memory`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from megatron.torch_trace.commands import options, terminal
from megatron.torch_trace.errors import DamagedTraceError, StrictError, UsageError

if TYPE_CHECKING:
    from megatron.torch_trace.allocator.answer import MemoryAnswer


@click.command("memory", epilog=options.exit_status())
@options.paths
@click.option(
    "--against",
    metavar="BASE",
    help="Say what grew, is new or is gone since this snapshot, trace or folder.",
)
@click.option(
    "--gpu-memory",
    type=click.FloatRange(min=0, min_open=True),
    metavar="GB",
    help="Memory of one GPU, where no trace beside the snapshots tells it.",
)
@options.top(8, help="Holders that are listed for each process.")
@options.as_json
@options.strict
def command(
    paths: tuple[str, ...],
    against: str | None,
    gpu_memory: float | None,
    top: int,
    as_json: bool,
    strict: bool,
) -> None:
    """Say who holds the GPU's memory, when it peaks, what grows.

    \b
    torch-trace memory rank-0.memory_snapshot.pickle
    torch-trace memory iter-0000005/
    torch-trace memory iter-0000500/ --against iter-0000005/

    PATH is an allocator snapshot, as torch.cuda.memory._dump_snapshot and Megatron's
    --record-memory-history write it, a trace recorded with --torch-profile-profile-memory, or a
    folder with those of several ranks. A snapshot is a pickle: it is read as data, and nothing in
    it is run.
    """
    capacity = None if gpu_memory is None else round(gpu_memory * 1e9)
    answers = _read(paths)
    base = _read([against]) if against else []
    said = _damage([*base, *answers])
    if said and strict:
        raise StrictError(said)
    if against:
        _difference(base, answers, top, as_json=as_json)
    else:
        _answer(answers, capacity, top, as_json=as_json)
    if said:
        raise DamagedTraceError(said)


def _read(paths: Sequence[str]) -> list[MemoryAnswer]:
    from megatron.torch_trace.allocator.answer import answers_of
    from megatron.torch_trace.allocator.memory_files import find_memory_files

    files = find_memory_files(paths)
    with terminal.progress_of_many("memory", files) as on_read:
        answers = [one for file in files for one in answers_of(file, on_read=on_read)]
    if not answers:
        raise UsageError(f"{paths[0]}: the snapshot is empty: no memory and no history in it.")
    return answers


def _damage(answers: Sequence[MemoryAnswer]) -> str:
    damaged = [str(one.path) for one in answers if one.cut_short or one.odd]
    return f"damaged: {', '.join(damaged)}; the answer is about what is whole." if damaged else ""


def _answer(
    answers: Sequence[MemoryAnswer], capacity: int | None, top: int, *, as_json: bool
) -> None:
    from megatron.torch_trace.allocator.ranks.rank_findings import rank_memories

    ranks = rank_memories(answers, capacity)
    if as_json:
        from megatron.torch_trace.allocator.json_answer import document

        click.echo(json.dumps(document(ranks, top)))
    else:
        from megatron.torch_trace.commands.memory_text.answer_text import print_answers

        print_answers(terminal.console(), ranks, top)


def _difference(
    before: Sequence[MemoryAnswer], after: Sequence[MemoryAnswer], top: int, *, as_json: bool
) -> None:
    from megatron.torch_trace.allocator.difference.difference import differences

    found = differences(before, after)
    if as_json:
        from megatron.torch_trace.allocator.difference.document import difference_document

        click.echo(json.dumps(difference_document(found, top)))
    else:
        from megatron.torch_trace.commands.memory_text.difference_text import print_differences

        print_differences(terminal.console(), found, top)
