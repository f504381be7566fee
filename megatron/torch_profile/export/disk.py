# SPDX-License-Identifier: Apache-2.0
"""Which disk a trace grows on: the node's, the trace folder's, or none."""

from __future__ import annotations

import threading
from dataclasses import replace

from megatron.torch_profile.export.limits import short_of_space
from megatron.torch_profile.export.trace_export import Export
from megatron.torch_profile.log import Slug, warn
from megatron.torch_trace import wording
from megatron.torch_trace.system.patience import joined

_ANSWER_SECONDS = 5.0
"""How long training waits for a file system."""


def with_room(export: Export, expected_mb: float, writers: int) -> Export | None:
    """The export, with its folders made, off a scratch folder that cannot take it.

    Args:
        export: the export as planned.
        expected_mb: estimated raw size.
        writers: ranks of this node that write to the same disk.

    Returns:
        None, and a line in the log, where no disk has room.

    Raises:
        OSError: the window's folder cannot be made.
        TimeoutError: a file system does not answer in time.
    """
    found: list[Export | Exception | None] = []

    def ask() -> None:
        try:
            found.append(prepared(export, expected_mb, writers))
        except Exception as error:
            found.append(error)

    # A thread, because who asks a network file system that hangs cannot be called back.
    asking = threading.Thread(target=ask, name="torch-profile-folder", daemon=True)
    try:
        asking.start()
    except RuntimeError:  # the process ends already, and Python starts no thread any more
        ask()
    else:
        joined(asking, _ANSWER_SECONDS)
    if not found:
        raise TimeoutError(f"{export.raw.parent} has not answered for {_ANSWER_SECONDS:.0f} s")
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def prepared(export: Export, expected_mb: float, writers: int) -> Export | None:
    """As `with_room`, for who may wait for a file system."""
    trouble = _trouble_with_scratch(export, expected_mb, writers) if export.scratch else None
    if trouble:
        warn(
            Slug.SCRATCH_UNUSABLE,
            "rank %d: %s; the trace of %s is written in %s instead",
            export.rank,
            trouble,
            wording.iterations(export.window),
            export.folder,
        )
        export = replace(export, scratch=None)
    elif export.scratch:
        return export
    export.prepare()
    short = short_of_space(export.folder, expected_mb, writers)
    if short is None:
        return export
    # A disk filled by traces would end training at its next checkpoint.
    warn(
        Slug.EXPORT_DROPPED,
        "rank %d drops the trace of %s: %s; name another folder with "
        "--torch-profile-dir or --torch-profile-scratch-dir",
        export.rank,
        wording.iterations(export.window),
        short,
    )
    return None


def _trouble_with_scratch(export: Export, expected_mb: float, writers: int) -> str | None:
    try:
        export.prepare()
        return short_of_space(export.raw.parent, expected_mb, writers)
    except OSError as error:
        return f"--torch-profile-scratch-dir {export.scratch}: {error.strerror}"
