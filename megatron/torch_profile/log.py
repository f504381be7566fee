# SPDX-License-Identifier: Apache-2.0
"""Lines for the user's log, and the one way out for a user's mistake.

Megatron sets the root logger's level to WARNING, so these lines have a logger of their own.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import NoReturn

from megatron.torch_trace.errors import TorchTraceError

PREFIX = "torch-profile"


class _Line(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        return "\n".join(f"[{PREFIX}] {level}{line}" for line in record.getMessage().splitlines())


class _Stdout(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to whatever sys.stdout is now: launchers and tests replace it."""

    def __init__(self) -> None:
        super().__init__(sys.stdout)
        self.setFormatter(_Line())

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stdout
        super().emit(record)


logger = logging.getLogger("megatron.torch_profile")
logger.setLevel(logging.INFO)
logger.propagate = False
if not logger.handlers:
    logger.addHandler(_Stdout())


def environment_rank() -> int:
    """Global rank as torchrun tells it; 0 where nobody does."""
    return int(os.environ.get("RANK", "0"))


def exit_with(error: TorchTraceError, *, grace_seconds: float = 15.0) -> NoReturn:
    """End this rank because of a mistake that all ranks see: one sentence, printed once.

    Rank 0 prints and leaves. The others give the launcher time to end them after rank 0 has
    spoken; where it does not (srun without --kill-on-bad-exit), they print and leave too, so no
    rank ever hangs.

    Args:
        error: its text is the sentence, its `exit_status` the status.
        grace_seconds: how long the other ranks wait.
    """
    if environment_rank() != 0:
        time.sleep(grace_seconds)
    sys.stdout.flush()
    print(f"{PREFIX}: error: {error}", file=sys.stderr, flush=True)
    raise SystemExit(error.exit_status)
