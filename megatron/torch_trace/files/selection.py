# SPDX-License-Identifier: Apache-2.0
"""Which of the traces that were found are analysed: of one window, and of the ranks asked for."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.files.same_rank import common_folder
from megatron.torch_trace.files.sources import rank_in_name
from megatron.torch_trace.format.file_names import WindowName
from megatron.torch_trace.wording import listed as listed


def windows_of(traces: Iterable[Path]) -> list[Path]:
    """Folders of windows that traces lie in, ascending."""
    return [
        folder for folder in sorted({t.parent for t in traces}) if WindowName.parse(folder.name)
    ]


def one_window(traces: list[Path]) -> list[Path]:
    """All traces of one window; ranks of several windows would be mixed up.

    Raises:
        UsageError: they are of several.
    """
    windows = windows_of(traces)
    runs = sorted({window.parent for window in windows})
    if len(runs) > 1:
        raise UsageError(
            f"{common_folder(runs)}: holds {len(runs)} runs "
            f"({listed([run.name for run in runs])}); name the folder of one window, such as "
            f"{windows[-1]}."
        )
    if len(windows) > 1:
        raise UsageError(
            f"{windows[0].parent}: holds {len(windows)} windows "
            f"({listed([w.name for w in windows])}); name one of these folders."
        )
    return traces


def of_ranks(traces: list[Path], wanted: set[int] | None) -> list[Path]:
    """Without the files whose very names say that they are of other ranks than `wanted`."""
    if wanted is None:
        return traces
    kept = [t for t in traces if rank_in_name(t.name) in wanted or rank_in_name(t.name) is None]
    return kept or traces
