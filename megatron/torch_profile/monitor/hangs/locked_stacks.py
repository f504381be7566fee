# SPDX-License-Identifier: Apache-2.0
"""Python stacks of a rank of which one thread keeps Python's lock, so that no other thread runs.

Nothing written in Python can run then. faulthandler has a thread in C that needs no lock: it writes
the stacks unless it is told in time, again and again, to wait longer.
"""

from __future__ import annotations

import faulthandler
import os
from contextlib import suppress
from pathlib import Path
from typing import IO

from megatron.torch_profile.log import Slug, warn
from megatron.torch_trace.wording import path_text, seconds


class LockedStacks:
    """Of one rank; all calls come from one thread.

    Args:
        path: of a file that is empty until stacks are written.
        limit: seconds without a call of `renew`.
        rank: for the log.
    """

    def __init__(self, path: Path, limit: float, rank: int) -> None:
        self._path = path
        self._limit = limit
        self._rank = rank
        self._file: IO[bytes] | None = None
        self._failed = False

    def renew(self) -> None:
        """This thread runs, so nobody keeps the lock."""
        if self._failed:
            return
        try:
            if self._file is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._path.open("xb")
            elif os.fstat(self._file.fileno()).st_size:
                self._failed = True  # what is written stays
                warn(
                    Slug.HANG,
                    "rank %d: a thread kept Python's lock for more than %s: %s has the stacks",
                    self._rank,
                    seconds(self._limit),
                    path_text(self._path),
                )
                return
            faulthandler.dump_traceback_later(self._limit, file=self._file)
        except (OSError, RuntimeError, ValueError):
            # A full disk, or a file of an earlier training of this process.
            self._failed = True

    def stop(self) -> None:
        """Training has ended."""
        if self._file is None:
            return
        if not self._failed:
            faulthandler.cancel_dump_traceback_later()
        self._failed = True
        with suppress(OSError):
            if not os.fstat(self._file.fileno()).st_size:
                self._path.unlink()
                self._path.parent.rmdir()  # unless others have left something
        self._file.close()
