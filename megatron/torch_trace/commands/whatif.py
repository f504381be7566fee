# SPDX-License-Identifier: Apache-2.0
"""`torch-trace whatif`."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import click

from megatron.torch_trace.commands import options
from megatron.torch_trace.commands.terminal.analysis_progress import Progress, raise_if_lost
from megatron.torch_trace.format.json_text import text_of
from megatron.torch_trace.wording import counted, visible

_CHANGES = {
    "--rank": ("R=median", "The CPU of rank R takes as long as the median of its peers."),
    "--gpu": ("R=median", "The GPU of rank R takes as long as the median of its peers."),
    "--comm": ("DIM*FACTOR", "Transfers of a dimension take FACTOR times as long: 'tp*0.5'."),
    "--overlap": ("DIM", "Compute does not wait for communication of a dimension, such as dp."),
    "--launch": ("FACTOR", "Launches take FACTOR times as long; 0.5: half."),
    "--cuda-graphs": ("MODULE", "Modules of this name are CUDA graphs; layers: each layer."),
    "--cpu-operators": ("FACTOR", "The CPU's time in operators is FACTOR times as long."),
    "--kernel": ("REGEX*FACTOR", "Kernels with these names take FACTOR times as long."),
    "--module": ("NAME*FACTOR", "Modules of this name or class take FACTOR times as long."),
    "--copies": ("KIND=FACTOR", "Copies of a kind: pageable, pinned, device, all; pageable=0."),
    "--sync": ("none", "The CPU never waits for the GPU."),
    "--data-loader": ("FACTOR", "Waiting for the data loader takes FACTOR times as long; 0."),
    "--garbage-collection": ("FACTOR", "Python's garbage collections take FACTOR times as long."),
    "--tiny-kernels": ("FACTOR", "Kernels below 5 us and their launches take FACTOR times; 0."),
    "--barriers": ("none", "No rank waits in a barrier."),
    "--micro-batches": ("N", "N micro-batches of the recorded size."),
    "--virtual-stages": ("V", "V virtual stages on each pipeline rank."),
    "--move-layers": ("'A>B'", "A layer goes from stage A to stage B; 'A>B*2': two layers."),
    "--stages": ("balanced", "All pipeline stages take equally long."),
}


class _Changes(click.Command):
    """`--cpu-operators*0.7` means `--cpu-operators '*0.7'`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words: list[str] = []
        for word in args:
            match = re.fullmatch(r"(--[a-z-]+)(\*.+)", word)
            words += match.groups() if match and match[1] in _CHANGES else [word]
        return super().parse_args(ctx, words)


def _changes(function: Any) -> Any:
    for flag, (metavar, text) in reversed(_CHANGES.items()):
        name = flag.removeprefix("--").replace("-", "_")
        option = click.option(flag, name, multiple=True, metavar=metavar, help=text)
        function = option(function)
    return function


@click.command("whatif", cls=_Changes, epilog=options.exit_status(s4=""))
@options.paths
@_changes
@click.option(
    "--save",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="Write the simulated iteration: a new folder gets a trace of each rank, a new file "
    "(.json, .json.gz, .json.zst) one trace of all ranks.",
)
@options.as_json
@options.model_flops
@options.jobs_of_ranks
def command(
    paths: tuple[str, ...],
    as_json: bool,
    model_flops: float | None,
    jobs: int | None,
    save: Path | None,
    **changes: tuple[str, ...],
) -> None:
    """Say what an iteration would take after changes, and which path it could not avoid.

    \b
    torch-trace whatif iter-0000005/
    torch-trace whatif iter-0000005/ --rank 2=median
    torch-trace whatif iter-0000005/ --micro-batches 16 --virtual-stages 2

    PATH is a trace, or the folder of a window with the traces of its ranks. Without a change, the
    answer is a table of the changes that may be worth it, the largest gain first. The changes from
    --micro-batches on are simulated on the forward and backward of each micro-batch over all ranks,
    the changes before it on single kernels of up to 16 ranks.
    """
    from megatron.torch_trace.analysis.run.whatif import whatif
    from megatron.torch_trace.report.prediction.document import document
    from megatron.torch_trace.report.prediction.text import render
    from megatron.torch_trace.rewrite import simulated_trace

    if save:
        simulated_trace.refuse_existing(save)
    with Progress("whatif") as bar:
        answer = whatif(
            paths,
            model_flops=model_flops,
            jobs=jobs,
            on_start=bar.start,
            on_done=bar.done,
            on_kept=bar.kept,
            with_times=save is not None,
            **{name: value for name, value in changes.items() if value},
        )
    if save:
        files = simulated_trace.write(answer.times, save, answer.changes)
        click.echo(f"{visible(str(save))}: {counted(len(files), 'simulated trace')}", err=True)
    if as_json:
        click.echo(text_of(document(answer)))
    else:
        width = shutil.get_terminal_size((100, 24)).columns
        click.echo(visible(render(answer, width=width), lines=True), nl=False)
    raise_if_lost(answer.damaged_files, answer.skipped_files)
