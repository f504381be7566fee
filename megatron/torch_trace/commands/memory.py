# SPDX-License-Identifier: Apache-2.0
"""`torch-trace memory`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

import click

from megatron.torch_trace.commands import options, terminal
from megatron.torch_trace.commands.memory_text.reading import Reading
from megatron.torch_trace.commands.options import output_names
from megatron.torch_trace.errors import DamagedTraceError, StrictError, UsageError
from megatron.torch_trace.files.writer import OutputFile
from megatron.torch_trace.format.json_text import text_of

if TYPE_CHECKING:
    from megatron.torch_trace.allocator.answer import MemoryAnswer
    from megatron.torch_trace.allocator.fit.moments import Moments
    from megatron.torch_trace.allocator.pictures.picture import MemoryPicture


@click.command("memory", epilog=options.exit_status())
@options.paths
@click.option(
    "--against",
    shell_complete=options.files,
    metavar="BASE",
    help="Say what grew, is new or is gone since this snapshot, trace or folder.",
)
@click.option(
    "--fit",
    is_flag=True,
    help="Say the largest micro-batch that fits, and what flags of Megatron would free; a second "
    "run that differs in one flag measures what that flag frees.",
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
    help="Memory of one GPU; needed if no trace beside the snapshots has it.",
)
@options.top(8, help="Holders that are listed for each process.")
@options.as_json
@options.force
@options.strict
def command(
    paths: tuple[str, ...],
    against: str | None,
    fit: bool,
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
    torch-trace memory iter-0000005/ --fit

    PATH is an allocator snapshot, as torch.cuda.memory._dump_snapshot and Megatron's
    --record-memory-history write it, a trace recorded with --torch-profile-profile-memory, or a
    folder with such files of several ranks. A snapshot is a pickle: it is read as data, and nothing
    in it is run.
    """
    if against and fit:
        raise UsageError("--fit: is about one state; leave out --against.")
    if against and output:
        raise UsageError(f"--output {output}: a page shows one state; leave out --against.")
    capacity = None if gpu_memory is None else round(gpu_memory * 1e9)
    reading = Reading(draws=output is not None, measures=fit)
    # The file first, because it refuses one that exists before minutes of work.
    with OutputFile(output, force=force) if output else nullcontext() as file:
        answers = reading.read(paths)
        base = Reading().read([against]) if against else []
        said = _damage([*base, *answers])
        if said and strict:
            raise StrictError(said)
        if file is not None:
            file.write(_page(paths, answers, capacity, reading.drawn))
    if against:
        _difference(base, answers, top, as_json=as_json)
    elif output != "-":
        _answer(answers, capacity, reading.measured, top, as_json=as_json)
    if said:
        raise DamagedTraceError(said)


def _page(
    paths: Sequence[str],
    answers: Sequence[MemoryAnswer],
    capacity: int | None,
    drawn: Sequence[MemoryPicture],
) -> bytes:
    from megatron.torch_trace.allocator.ranks.rank_findings import rank_memories
    from megatron.torch_trace.report.memory.charts import DrawnRank
    from megatron.torch_trace.report.memory.page import render_memory_page

    ranks = rank_memories(answers, capacity)
    charts = [DrawnRank(rank, picture) for rank, picture in zip(ranks, drawn, strict=True)]
    title = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
    return render_memory_page(charts, title).encode()


def _damage(answers: Sequence[MemoryAnswer]) -> str:
    damaged = [str(one.path) for one in answers if one.cut_short or one.odd]
    return f"damaged: {', '.join(damaged)}; the answer is about what is whole." if damaged else ""


def _answer(
    answers: Sequence[MemoryAnswer],
    capacity: int | None,
    measured: Sequence[Moments],
    top: int,
    *,
    as_json: bool,
) -> None:
    from megatron.torch_trace.allocator.fit.runs import fit_of_runs
    from megatron.torch_trace.allocator.ranks.rank_findings import rank_memories

    ranks = rank_memories(answers, capacity)
    fit = fit_of_runs(ranks, measured) if measured else None
    if as_json:
        from megatron.torch_trace.allocator.fit.document import fit_document
        from megatron.torch_trace.allocator.json_answer import document

        found = document(ranks, top)
        click.echo(text_of(found if fit is None else found | {"fit": fit_document(fit)}))
    elif fit is not None:
        from megatron.torch_trace.commands.memory_text.fit_text import print_fit

        print_fit(terminal.console(), fit)
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

        click.echo(text_of(difference_document(found, top)))
    else:
        from megatron.torch_trace.commands.memory_text.difference_text import print_differences

        print_differences(terminal.console(), found, top)
