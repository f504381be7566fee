# SPDX-License-Identifier: Apache-2.0
"""Two traces of one rank where one is expected: what lies there, and what to name instead."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.wording import listed


def same_rank(rank: int, one: Path | str, other: Path | str, traces: Iterable[Path]) -> UsageError:
    """The error that two traces are of one rank.

    Args:
        rank: of both.
        one, other: the two.
        traces: all that are read together. If they lie in several folders, these are several runs
            or windows, and the user has to choose a folder and not a file.
    """
    folders = sorted({trace.parent for trace in traces})
    if Path(one).parent == Path(other).parent or len(folders) < 2:
        return UsageError(f"{one} and {other}: both are rank {rank}; name only one of them.")
    common = common_folder(folders)
    names = [str(folder.relative_to(common)) for folder in folders]
    return UsageError(
        f"{common}: holds traces in {len(folders)} folders ({listed(names)}), and more than one of "
        f"them has rank {rank}, as several runs or windows do; name one folder, such as "
        f"{folders[0]}."
    )


def common_folder(folders: Iterable[Path]) -> Path:
    """The folder in which all of `folders` lie."""
    return Path(os.path.commonpath([str(folder) for folder in folders]) or ".")
