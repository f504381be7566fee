# SPDX-License-Identifier: Apache-2.0
"""Where a launch writes: its folder, whether it can be had, what dead runs left beside it."""

from __future__ import annotations

import os
import tempfile
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from megatron.torch_profile.config import TorchProfileConfig, flag_of
from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.format.file_names import RunName
from megatron.torch_trace.format.suffixes import TEMPORARY_SUFFIX

_SEARCHED_RUNS = 20
_DEAD_SECONDS = 900


def root_of(config: TorchProfileConfig, args: Any) -> Path:
    """Where launches get their folders."""
    return Path(config.dir or getattr(args, "tensorboard_dir", None) or "torch_profile").absolute()


def make(root: Path) -> Path | UsageError:
    """A folder of this launch's own; a name taken within the same second moves to the next."""
    start = datetime.now()
    job = os.environ.get("SLURM_JOB_ID")
    try:
        root.mkdir(parents=True, exist_ok=True)
        while True:
            folder = root / str(RunName(start, job))
            try:
                folder.mkdir()
            except FileExistsError:
                start += timedelta(seconds=1)
            else:
                return folder
    except OSError as error:
        return not_writable(root, "rank 0", error.strerror)


def unfinished_traces(root: Path, folder: Path) -> tuple[Path, ...]:
    """Temporary files in the newest runs that nobody has written to for a while.

    Only for a line in the log, while the other ranks wait in the next collective: files of a run
    that lives may vanish meanwhile, and other users' folders may be closed.
    """
    now = time.time()
    try:
        runs = sorted(path for path in root.iterdir() if RunName.parse(path.name))
        found = [
            file
            for run in runs[-_SEARCHED_RUNS:]
            if run != folder
            for file in run.glob(f"*/*{TEMPORARY_SUFFIX}")
        ]
        return tuple(file for file in found if now - file.stat().st_mtime > _DEAD_SECONDS)
    except OSError:
        return ()


def not_writable(root: Path, who: str, problem: str | None) -> UsageError:
    """The sentence for a folder that somebody cannot write to."""
    return UsageError(
        f"{flag_of('dir')} {root}: {who} cannot write there ({problem}); name a folder that every "
        "profiled rank can write to."
    )


def why_not_beside(root: Path) -> str | None:
    """Why no folder can be made at a path; what is made to find out is gone again."""
    try:
        nearest = next(path for path in (root, *root.parents) if path.exists())
        Path(tempfile.mkdtemp(prefix=".writable-", dir=nearest)).rmdir()
    except OSError as error:
        return error.strerror or type(error).__name__
    return None


def why_not_writable(folder: Path) -> str | None:
    """Why nothing can be written into a folder, which is made if it is not there."""
    probe = folder / f".writable-{os.getpid()}-{os.environ.get('RANK', '0')}"
    try:
        folder.mkdir(parents=True, exist_ok=True)  # the folder may be local to each node
        probe.touch()
        probe.unlink()
    except OSError as error:
        return error.strerror or type(error).__name__
    return None
