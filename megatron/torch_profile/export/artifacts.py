# SPDX-License-Identifier: Apache-2.0
"""What else is written of a finished trace: the table of operators, and stacks for flame graphs.

    python -m megatron.torch_profile.export.artifacts TRACE [key_averages=FILE] [stacks=FILE]

A program of its own, with the least priority, that reads the trace as `torch-trace operators` and
`torch-trace stacks` do: the profiler's own events would be millions of objects in training. Says
on stdout, as JSON, what went wrong if so.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from megatron.torch_profile.export.own_process import answer_training, be_killed_first
from megatron.torch_trace.errors import TorchTraceError
from megatron.torch_trace.files.atomic import atomic_path

if TYPE_CHECKING:
    from megatron.torch_trace.analysis.host.call_tree import CallTree

KEY_AVERAGES, STACKS = "key_averages", "stacks"

_ROWS = 200


def write(trace: Path, wanted: dict[str, Path]) -> None:
    """Write some artifacts of one trace.

    Args:
        trace: which is finished.
        wanted: `KEY_AVERAGES`, `STACKS` -> a file in a folder that may not be there.

    Raises:
        OSError, TorchTraceError: one cannot be written; those before it are.
    """
    from megatron.torch_trace.analysis.host.call_tree import call_tree
    from megatron.torch_trace.analysis.host.key_averages import key_averages
    from megatron.torch_trace.report.operator_table import operator_table

    tree = call_tree(trace)
    if KEY_AVERAGES in wanted:
        _write(wanted[KEY_AVERAGES], [operator_table(key_averages(tree), limit=_ROWS)])
    if STACKS in wanted:
        _write(wanted[STACKS], _stacks(tree))


def _stacks(tree: CallTree) -> Iterable[str]:
    from megatron.torch_trace.analysis.host import stacks

    if not tree.has_python:
        raise TorchTraceError("the trace holds no Python functions, so there are no stacks")
    return (f"{line}\n" for line in stacks.lines(stacks.stacks(tree, gpu=tree.has_gpu)))


def _write(target: Path, texts: Iterable[str]) -> None:
    target.parent.mkdir(exist_ok=True)
    try:
        with (
            atomic_path(target, replace=False) as unfinished,
            unfinished.open("w", encoding="utf-8", errors="replace") as file,
        ):
            file.writelines(texts)
    except FileExistsError as error:
        raise TorchTraceError(f"{target} exists, and stays as it is") from error


def main(argv: list[str]) -> None:
    """Write what the words of the command line ask for."""
    wanted = dict(word.split("=", 1) for word in argv[1:])
    files = {kind: Path(file) for kind, file in wanted.items()}
    answer_training(lambda _answer: write(Path(argv[0]), files))


if __name__ == "__main__":
    be_killed_first()
    main(sys.argv[1:])
