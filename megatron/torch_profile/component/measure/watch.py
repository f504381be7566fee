# SPDX-License-Identifier: Apache-2.0
"""What torch says while a case runs: graph breaks, recompilations, warnings, each with its line."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from megatron.torch_profile.component.measure.finding import Finding

_FALLBACKS = (
    (
        re.compile(r"Mismatch dtype between input and weight.*fused", re.DOTALL),
        "fused_kernel_refused",
    ),
    (re.compile(r"FALLBACK path (has been|is being) taken"), "fused_kernel_refused"),
    (
        re.compile(
            r"(Flash|Memory Efficient|cuDNN).*(not used|disabled|requires|only|support)",
            re.I,
        ),
        "fused_kernel_refused",
    ),
    (re.compile(r"(TensorFloat32|TF32).*not enabled", re.I | re.DOTALL), "tensor_cores_unused"),
)
_MOST = 5
_LINE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


class Watch:
    """Heard while a case is built and warms up."""

    def __init__(self) -> None:
        self._said: list[Any] = []
        self._breaks: dict[str, int] = {}
        self._compilations = 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While open, warnings are kept; what is compiled is counted from here on."""
        self._breaks = dict(_graph_breaks())
        self._compilations = len(_compilations())
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                yield
            finally:
                self._said += said

    def findings(self) -> list[Finding]:
        """What it came to."""
        found = [*self._broken(), *self._recompiled(), *self._refused()]
        return list(dict.fromkeys(found))

    def _broken(self) -> Iterator[Finding]:
        new = {k: n for k, n in _graph_breaks().items() if n > self._breaks.get(k, 0)}
        for reason in list(new)[:_MOST]:
            yield Finding(
                "graph_break", f"torch.compile breaks the graph: {_first(reason)}", _place(reason)
            )

    def _recompiled(self) -> Iterator[Finding]:
        again = [one for one in _compilations()[self._compilations :] if _reason(one)]
        for one in again[:_MOST]:
            file = getattr(one, "co_filename", None)
            line = getattr(one, "co_firstlineno", None)
            place = f"{Path(file).name}, line {line}" if file and line else ""
            name = getattr(one, "co_name", "a function")
            yield Finding(
                "recompilation",
                f"torch.compile compiles {name} again: {_first(_reason(one))}",
                place,
            )

    def _refused(self) -> Iterator[Finding]:
        for one in self._said:
            text = str(one.message)
            for pattern, code in _FALLBACKS:
                if pattern.search(text):
                    yield Finding(
                        code, _first(text), f"{Path(one.filename).name}, line {one.lineno}"
                    )
                    break


def _graph_breaks() -> dict[str, int]:
    dynamo = sys.modules.get("torch._dynamo.utils")
    counters = getattr(dynamo, "counters", None) or {}
    return {str(reason): int(n) for reason, n in dict(counters.get("graph_break", {})).items()}


def _compilations() -> list[Any]:
    dynamo = sys.modules.get("torch._dynamo.utils")
    metrics = getattr(dynamo, "get_compilation_metrics", None)
    return list(metrics()) if metrics is not None else []


def _reason(one: Any) -> str:
    return str(getattr(one, "recompile_reason", None) or "")


def _first(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "no reason is told")
    line = line if len(line) <= 240 else f"{line[:240]}..."
    return f"{line.rstrip('.')}."


def _place(text: str) -> str:
    found = list(_LINE.finditer(text))
    return f"{Path(found[-1]['file']).name}, line {found[-1]['line']}" if found else ""
