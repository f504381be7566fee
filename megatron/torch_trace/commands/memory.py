# SPDX-License-Identifier: Apache-2.0
"""`torch-trace memory`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

import click

from megatron.torch_trace.commands import options, terminal
from megatron.torch_trace.commands.options import output_names
from megatron.torch_trace.errors import DamagedTraceError, StrictError, UsageError
from megatron.torch_trace.files.writer import OutputFile

if TYPE_CHECKING:
    from megatron.torch_trace.allocator.answer import MemoryAnswer
    from megatron.torch_trace.allocator.device_memory import DeviceMemory
    from megatron.torch_trace.allocator.pictures.picture import MemoryPicture


@click.command("memory", epilog=options.exit_status())
@options.paths
@click.option(
    "--against",
    metavar="BASE",
    help="Say what grew, is new or is gone since this snapshot, trace or folder.",
)
@options.output(
    required=False,
    help="Also write an HTML page, such as memory.html.",
    refuse=output_names.PAGE,
)
@click.option(
    "--gpu-memory",
    type=click.FloatRange(min=0, min_open=True),
    metavar="GB",
    help="Memory of one GPU, where no trace beside the snapshots tells it.",
)
@options.top(8, help="Holders that are listed for each process.")
@options.as_json
@options.force
@options.strict
def command(
    paths: tuple[str, ...],
    against: str | None,
    output: str | None,
    gpu_memory: float | None,
    top: int,
    as_json: bool,
    force: bool,
    strict: bool,
) -> None:
    """Say who holds the GPU's memory, when it peaks, what grows.

    \b
    torch-trace memory rank-0.memory_snapshot.pickle
    torch-trace memory iter-0000005/
    torch-trace memory iter-0000005/ -o memory.html
    torch-trace memory iter-0000500/ --against iter-0000005/

    PATH is an allocator snapshot, as torch.cuda.memory._dump_snapshot and Megatron's
    --record-memory-history write it, a trace recorded with --torch-profile-profile-memory, or a
    folder with those of several ranks. A snapshot is a pickle: it is read as data, and nothing in
    it is run.
    """
    if against and output:
        raise UsageError(f"--output {output}: a page shows one state; leave out --against.")
    capacity = None if gpu_memory is None else round(gpu_memory * 1e9)
    pictures: list[MemoryPicture] = []
    # The file first, because it refuses one that exists before minutes of work.
    with OutputFile(output, force=force) if output else nullcontext() as file:
        answers = _read(paths, pictures if output else None)
        base = _read([against]) if against else []
        said = _damage([*base, *answers])
        if said and strict:
            raise StrictError(said)
        if file is not None:
            file.write(_page(paths, answers, capacity, pictures))
    if against:
        _difference(base, answers, top, as_json=as_json)
    elif output != "-":
        _answer(answers, capacity, top, as_json=as_json)
    if said:
        raise DamagedTraceError(said)


def _read(paths: Sequence[str], pictures: list[MemoryPicture] | None = None) -> list[MemoryAnswer]:
    """The answers from all files; with pictures, in the same order, if they are wanted."""
    from megatron.torch_trace.allocator.answer import answers_of
    from megatron.torch_trace.allocator.memory_files import find_memory_files
    from megatron.torch_trace.allocator.pictures.picture import picture_of

    files = find_memory_files(paths)
    answers: list[MemoryAnswer] = []
    with terminal.progress_of_many("memory", files) as on_read:
        for path in files:
            drawn: dict[int, MemoryPicture] = {}

            def draw(memory: DeviceMemory, drawn: dict[int, MemoryPicture] = drawn) -> None:
                drawn[memory.device] = picture_of(memory)

            wanted = draw if pictures is not None else None
            found = answers_of(path, on_read=on_read, on_device=wanted)
            answers += found
            if pictures is not None:
                pictures += [drawn[one.device] for one in found]
    if not answers:
        raise UsageError(f"{paths[0]}: the snapshot is empty: no memory and no history in it.")
    return answers


def _page(
    paths: Sequence[str],
    answers: Sequence[MemoryAnswer],
    capacity: int | None,
    pictures: Sequence[MemoryPicture],
) -> bytes:
    from megatron.torch_trace.allocator.ranks.rank_findings import rank_memories
    from megatron.torch_trace.report.memory.charts import DrawnRank
    from megatron.torch_trace.report.memory.page import render_memory_page

    ranks = rank_memories(answers, capacity)
    drawn = [DrawnRank(rank, picture) for rank, picture in zip(ranks, pictures, strict=True)]
    title = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
    return render_memory_page(drawn, title).encode()


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
