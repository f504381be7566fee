# SPDX-License-Identifier: Apache-2.0
"""`torch-trace stacks`."""

from __future__ import annotations

import click

from megatron.torch_trace.commands import options
from megatron.torch_trace.commands.options.one_trace import refuse_all_but_one_trace
from megatron.torch_trace.errors import DamagedTraceError, UsageError
from megatron.torch_trace.reader import available_cores


@click.command("stacks", epilog=options.exit_status())
@options.argument("path", metavar="FILE")
@click.option(
    "--time",
    "device",
    type=click.Choice(("gpu", "cpu")),
    help="Time of the GPU work that was launched, or time on the CPU [default: gpu where there is "
    "GPU work, else cpu].",
)
@options.strict
@options.jobs
def command(path: str, device: str | None, strict: bool, jobs: int | None) -> None:
    """Print stacks of Python functions for flame graphs, from the trace alone.

    \b
    torch-trace stacks rank-0.pt.trace.json.gz > stacks.txt
    flamegraph.pl stacks.txt > flames.svg

    Each line is a stack, the outermost function first, and then the microseconds of the innermost
    function itself, as torch.profiler's export_stacks() writes them. The trace needs Python
    functions (with_stack).
    """
    from megatron.torch_trace.analysis.host import stacks
    from megatron.torch_trace.analysis.host.call_tree import call_tree

    refuse_all_but_one_trace(path, "stacks")
    tree = call_tree(path, strict=strict, workers=jobs or available_cores())
    if not tree.has_python:
        raise UsageError(
            f"{path}: holds no Python functions; record with --torch-profile-with-stack "
            "(torch.profiler: with_stack=True)."
        )
    if device == "gpu" and not tree.has_gpu:
        raise UsageError(f"{path}: --time gpu: the trace holds no GPU work; use --time cpu.")
    gpu = tree.has_gpu if device is None else device == "gpu"
    for line in stacks.lines(stacks.stacks(tree, gpu=gpu)):
        click.echo(line)
    if tree.damage:
        raise DamagedTraceError(f"{path}: {tree.damage.sentence()}.")
