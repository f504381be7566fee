# SPDX-License-Identifier: Apache-2.0
"""`torch-trace merge`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from megatron.torch_trace import wording
from megatron.torch_trace.commands import options, terminal
from megatron.torch_trace.commands.options import output_names
from megatron.torch_trace.errors import DamagedTraceError, UsageError
from megatron.torch_trace.files.sources import find_traces, ranked, skipped_lines
from megatron.torch_trace.reader import available_cores
from megatron.torch_trace.reader.workers import started_early

if TYPE_CHECKING:
    from megatron.torch_trace.rewrite.merge.merge import MergeResult


@click.command("merge", epilog=options.exit_status())
@options.paths
@options.output(
    required=True,
    help="File to write: .json, .json.gz or .json.zst; - for stdout.",
    refuse=output_names.TRACE,
)
@click.option(
    "--ranks",
    metavar="N[,N]",
    help="The rank of each trace, in the order of PATH..., if neither the traces nor their names "
    "have it.",
)
@click.option("--only", metavar="N[,N]", help="Merge only these of the ranks.")
@click.option(
    "--align",
    is_flag=True,
    help="Correct the clocks of the hosts, so that collectives end together.",
)
@options.force
@options.strict
@options.jobs
def command(
    paths: tuple[str, ...],
    output: str,
    ranks: str | None,
    only: str | None,
    align: bool,
    force: bool,
    strict: bool,
    jobs: int | None,
) -> None:
    """Write the traces of several ranks as one trace, for Perfetto.

    \b
    torch-trace merge iter-0000005/ -o all.json.gz
    torch-trace merge rank-0.json.gz rank-8.json.gz -o two.json.gz --align

    Ranks are named and sorted: `rank 0 (tp0 pp0 dp0)`. All slices are shown in Perfetto v51-v56
    too. The merged file is for looking at; analyze needs the files of the single ranks.
    """
    from megatron.torch_trace.files.selection import listed, one_window

    sources = find_traces(paths)
    traces = ranked(one_window(sources.traces), _in_order(ranks) if ranks else None)
    if only:
        from megatron.torch_trace.rewrite.selection import parse_numbers

        wanted, there = parse_numbers(only, "--only"), [trace.rank for trace in traces]
        missing = wanted.difference(there)
        if missing:
            raise UsageError(
                f"--only {min(missing)}: there is no trace of this rank; there are {listed(there)}."
            )
        traces = [trace for trace in traces if trace.rank in wanted]
    for line in skipped_lines(sources.skipped):
        terminal.say(line)
    inputs, workers = [trace.path for trace in traces], jobs or available_cores()
    with (
        started_early(workers - 1, inputs, "megatron.torch_trace.rewrite.merge.block_merge"),
        terminal.progress_of_many("merge", inputs, passes=2) as on_read,
    ):
        # Imported here: meanwhile the other processes do the same.
        from megatron.torch_trace.rewrite.merge.merge import merge

        result = merge(
            traces,
            output,
            align=align,
            force=force,
            strict=strict,
            workers=workers,
            on_read=on_read,
        )
    if output != "-":
        _report(output, result)
    for note in result.notes:
        terminal.say(note)
    if result.damage:
        parts = [f"{path}: {damage.sentence()}" for path, damage in result.damage.items()]
        raise DamagedTraceError(f"{'; '.join(parts)}.")


def _in_order(ranks: str) -> list[int]:
    words = ranks.replace(",", " ").split()
    if not all(word.isdecimal() for word in words):
        raise UsageError(f"--ranks {ranks}: not a list of ranks; write 0,1,...: one a trace.")
    return [int(word) for word in words]


def _report(output: str, result: MergeResult) -> None:
    console = terminal.console()
    if result.offsets_ns:
        table = terminal.table("rank", "clock moved by", right=(0, 1))
        for rank, offset in result.offsets_ns.items():
            table.add_row(str(rank), "unknown" if offset is None else wording.duration(offset))
        console.print(table)
    console.print(
        f"Wrote {terminal.literal(output)}: {wording.counted(len(result.ranks), 'rank')}, "
        f"{result.events:,} events, {wording.size(result.written_bytes)} of JSON."
        f"{terminal.on_own_lanes(result.moved_crossing)}",
        soft_wrap=True,
    )
    console.print("Open the file in https://ui.perfetto.dev.")
