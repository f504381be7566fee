# SPDX-License-Identifier: Apache-2.0
"""Options that several subcommands share, so that they are called and mean the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

paths: Decorator = click.argument("paths", nargs=-1, required=True, metavar="PATH...")

force: Decorator = click.option("--force", is_flag=True, help="Replace output that exists.")

strict: Decorator = click.option(
    "--strict", is_flag=True, help="Damaged input: write nothing, exit with status 4."
)

as_json: Decorator = click.option("--json", "as_json", is_flag=True, help="JSON for machines.")

jobs: Decorator = click.option(
    "-j",
    "--jobs",
    type=click.IntRange(min=1),
    default=None,
    metavar="N",
    help="Processes to use [default: the cores that this job may use, at most 4].",
)


def output(*, required: bool, help: str) -> Decorator:  # noqa: A002  (click's word)
    """`-o`, `--output`."""
    return click.option("-o", "--output", required=required, metavar="OUT", help=help)


def ranks(help: str = "Only this rank; can be given several times.") -> Decorator:  # noqa: A002
    """`--rank`, several times."""
    return click.option(
        "--rank", "ranks", type=click.IntRange(min=0), multiple=True, metavar="R", help=help
    )


def step(help: str = "Only this step, by its number in the trace.") -> Decorator:  # noqa: A002
    """`--step`."""
    return click.option("--step", type=int, metavar="S", help=help)


model_flops: Decorator = click.option(
    "--model-flops",
    type=click.FloatRange(min=0, min_open=True),
    metavar="FLOPS",
    help="FLOPs of the model in one iteration over all GPUs, for MFU, where the traces lack them.",
)
