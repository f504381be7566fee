# SPDX-License-Identifier: Apache-2.0
"""Options that several subcommands share, so that they are called and mean the same everywhere."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.format.rank_ranges import MOST_RANKS, rank_range
from megatron.torch_trace.system.cores import MOST_FOR_ONE_FILE, MOST_FOR_RANKS

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For `shell_complete`: the shell completes names of files and folders."""
    return [CompletionItem(incomplete, type="file")]


def argument(name: str, **more: Any) -> Decorator:
    """An argument that names a file or a folder."""
    return click.argument(name, shell_complete=files, **more)


paths: Decorator = argument("paths", nargs=-1, required=True, metavar="PATH...")

force: Decorator = click.option("--force", is_flag=True, help="Replace output that exists.")

strict: Decorator = click.option(
    "--strict", is_flag=True, help="On damaged input write nothing, and exit with status 4."
)

as_json: Decorator = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

_STATUS = {
    0: "success",
    1: "failure",
    2: "wrong usage",
    3: "damaged input; the answer is about what is whole",
    4: "damaged input, with --strict",
}


def exit_status(**other: str) -> str:
    """The paragraph on exit statuses at the end of a command's help.

    Args:
        other: `s3="..."`: what status 3 says of this command; empty where it has none.
    """
    meanings = _STATUS | {int(name[1:]): text for name, text in other.items()}
    lines = [f"  {status}  {text}" for status, text in meanings.items() if text]
    return "\n".join(["\b", "Exit status:", *lines])


JOBS = f"Processes to use [default: the cores that this job may use, at most {MOST_FOR_ONE_FILE}]."
JOBS_OF_RANKS = (
    "Processes to use [default: as many as the job's cores and memory allow, at most "
    f"{MOST_FOR_ONE_FILE} for one trace and {MOST_FOR_RANKS} for several]."
)


def _jobs(help: str) -> Decorator:  # noqa: A002  (click's word)
    return click.option(
        "-j", "--jobs", type=click.IntRange(min=1), default=None, metavar="N", help=help
    )


jobs: Decorator = _jobs(JOBS)

jobs_of_ranks: Decorator = _jobs(JOBS_OF_RANKS)


def output(
    *,
    required: bool,
    help: str,  # noqa: A002  (click's word)
    refuse: Callable[[str], None] | None = None,
    **more: Any,
) -> Decorator:
    """`-o`, `--output`: a file or folder that is there, one that is not, or `-`.

    Args:
        required, help: for click.
        refuse: raises UsageError where a name is wrong for what the command writes.
        more: for click, too.
    """

    def checked(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
        if value and refuse:
            refuse(value)
        return replaceable(ctx, param, value)

    return click.option(
        "-o",
        "--output",
        required=required,
        metavar="OUT",
        help=help,
        callback=checked,
        shell_complete=files,
        **more,
    )


def replaceable(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """A finished file is renamed to its name, which would take the place of a device or pipe."""
    if value is None or value == "-":
        return value
    if not value:
        raise UsageError("--output: is empty; name the file to write.")
    try:
        mode = Path(value).stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return value
    except OSError as error:
        raise UsageError(f"--output {value}: cannot be written ({error.strerror}).") from error
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise UsageError(
            f"--output {value}: is a device or a pipe, which would be replaced; name a file, or - "
            "for standard output."
        )
    return value


def ranks(help: str = "Only these ranks: 3, 0-63,128 or 0-63:8.") -> Decorator:  # noqa: A002
    """`--rank`, with ranges and several times; a command gets the ranks, ascending."""
    return click.option(
        "--rank", "ranks", multiple=True, metavar="R[-R],...", callback=_ranks_of, help=help
    )


def _ranks_of(
    ctx: click.Context, param: click.Parameter, words: tuple[str, ...]
) -> tuple[int, ...]:
    found: set[int] = set()
    for word in words:
        for part in word.split(","):
            these = rank_range(part.strip())
            if these is None:
                raise UsageError(
                    f"--rank {word}: {part!r} is no rank and no range; write 3, 0-63,128 or 0-63:8."
                )
            if not these:
                raise UsageError(f"--rank {word}: the range {part} is empty; write it as 0-63.")
            if these[-1] >= MOST_RANKS:
                raise UsageError(f"--rank {word}: a job has at most {MOST_RANKS:,} ranks.")
            found.update(these)
    return tuple(sorted(found))


def step(help: str = "Only this step, by its number in the trace.") -> Decorator:  # noqa: A002
    """`--step`."""
    return click.option("--step", type=int, metavar="S", help=help)


def top(rows: int, *, help: str) -> Decorator:  # noqa: A002
    """`--top`: how many rows of long tables are shown."""
    return click.option(
        "--top",
        type=click.IntRange(min=1),
        default=rows,
        show_default=True,
        metavar="N",
        help=help,
    )


model_flops: Decorator = click.option(
    "--model-flops",
    type=click.FloatRange(min=0, min_open=True),
    metavar="FLOPS",
    help="FLOPs of the model in one iteration over all GPUs, for MFU; needed if the traces do not "
    "have this number.",
)
