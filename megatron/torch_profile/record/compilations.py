# SPDX-License-Identifier: Apache-2.0
"""What torch.compile does again, and where a fused kernel refused its inputs, counted.

Nothing runs in an iteration for it: torch counts compilations itself, and what it only warns of is
counted as the warning passes. Which version has which name is data; a count that cannot be had is
unknown, and an import is never the reason for one.
"""

from __future__ import annotations

import logging
import math
import re
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

COUNTS = ("recompiles", "graph_breaks", "recompile_limit_hits", "fused_kernels_refused")

_LIMIT_LOGGER = "torch._dynamo.convert_frame"
_LIMIT = re.compile(r"torch\._dynamo hit config\.\w*(recompile|cache_size)_limit")
"""Until torch 2.6 the limit was called cache_size_limit."""

_REFUSED = (
    # torch.nn.functional.rms_norm: a weight in fp32 under activations in bf16.
    re.compile(r"Mismatch dtype between input and weight.*dispatch to fused", re.DOTALL),
    # torch.jit's fuser, which Megatron uses where torch.compile is not.
    re.compile(r"FALLBACK path (has been|is being) taken"),
)
"""Warnings of kernels that do the work in several passes instead of one."""


class CompileWatch:
    """Counts from `start` to `stop`, in this process."""

    def __init__(self) -> None:
        self._limit_hits = 0
        self._refused = 0
        self._before: tuple[float, float] = (0.0, 0.0)
        self._listener = _Listener(self._hear)
        self._show: Any = None
        self._replaced: Any = None
        self._stopped = False

    def start(self) -> None:
        """Begin to count."""
        self._stopped = False
        logging.getLogger(_LIMIT_LOGGER).addHandler(self._listener)
        self._replaced, self._show = warnings.showwarning, self._show_warning
        warnings.showwarning = self._show
        self.reset()

    def reset(self) -> None:
        """Count from here on."""
        self._limit_hits = self._refused = 0
        self._before = _compilations(), _graph_breaks()

    def stop(self) -> None:
        """End; a second call changes nothing."""
        logging.getLogger(_LIMIT_LOGGER).removeHandler(self._listener)
        self._stopped = True
        # Somebody may have put theirs on top since: then ours stays below it and passes on, and the
        # one on top, if it is one of ours too, takes both away.
        if self._show is not None and warnings.showwarning is self._show:
            below = self._replaced
            while isinstance(watch := getattr(below, "__self__", None), CompileWatch):
                if not watch._stopped:
                    break
                below = watch._replaced
            warnings.showwarning = below

    def counts(self) -> list[float]:
        """`COUNTS`, NaN where this torch does not tell."""
        # torch.compiler.reset begins its counts anew.
        compiled = _since(_compilations(), self._before[0])
        breaks = _since(_graph_breaks(), self._before[1])
        # The compilation that meets the limit is counted, and does not take place.
        again = compiled if math.isnan(compiled) else max(0.0, compiled - self._limit_hits)
        return [again, breaks, float(self._limit_hits), float(self._refused)]

    def _hear(self, message: str) -> None:
        self._limit_hits += _LIMIT.search(message) is not None

    def _show_warning(self, message: Any, *args: Any, **kwargs: Any) -> None:
        self._refused += any(pattern.search(str(message)) for pattern in _REFUSED)
        self._replaced(message, *args, **kwargs)


class _Listener(logging.Handler):
    def __init__(self, hear: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._hear = hear

    def emit(self, record: logging.LogRecord) -> None:
        # Whoever warns is compiling: a line that does not format is no reason to stop him.
        with suppress(Exception):
            self._hear(record.getMessage())


def _since(now: float, before: float) -> float:
    return now - before if not now < before else now


def _compilations() -> float:
    """Of frames that had been compiled before, since the process began."""
    dynamo = sys.modules.get("torch._dynamo.convert_frame")
    if dynamo is None:  # nothing has been compiled
        return 0.0
    counter = getattr(dynamo, "FRAME_COMPILE_COUNTER", None)
    try:
        return float(sum(max(0, times - 1) for times in list(counter.values())))  # type: ignore[union-attr]
    except (AttributeError, TypeError):
        return math.nan


def _graph_breaks() -> float:
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return 0.0
    try:
        # `get`: looking a reason up would create it.
        return float(sum(dynamo.counters.get("graph_break", {}).values()))
    except (AttributeError, TypeError):
        return math.nan
