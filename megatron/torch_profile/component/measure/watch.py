# SPDX-License-Identifier: Apache-2.0
"""What torch says while a case runs: graph breaks, recompilations, warnings, each with its line."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
_LONGEST = 240
_LINES = (
    re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)'),
    re.compile(r"(?P<file>[^ :]+\.py):(?P<line>\d+) in "),
)
"""How tracebacks, and how the guards of torch.compile name a line."""
_CAST = re.compile(r"\s*\(Triggered internally.*", re.DOTALL)
_GUARD = re.compile(r"^\d+/\d+: ")


class Watch:
    """Heard while a case is built, warms up and is measured."""

    def __init__(self) -> None:
        self._said: list[Any] = []
        self._breaks = _graph_breaks()
        self._compilations = len(_compilations())

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While open, warnings are kept instead of shown."""
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                yield
            finally:
                self._said += said

    def findings(self, explain: Callable[[], Any]) -> list[Finding]:
        """What it came to since it was made; the same at the same line once.

        Args:
            explain: torch._dynamo.explain of the component, which names the lines of graph breaks.
        """
        return list(dict.fromkeys([*self._broken(explain), *self._recompiled(), *self._refused()]))

    def _broken(self, explain: Callable[[], Any]) -> Iterator[Finding]:
        new = [k for k, n in _graph_breaks().items() if n > self._breaks.get(k, 0)]
        if not new:
            return
        sources = _sources(explain)
        for reason in new[:_MOST]:
            said = f"torch.compile breaks the graph: {_first(reason)}"
            yield Finding("graph_break", said, sources.get(_first(reason), ""))

    def _recompiled(self) -> Iterator[Finding]:
        found: dict[str, list[str]] = {}
        for one in _compilations()[self._compilations :]:
            if reason := str(getattr(one, "recompile_reason", None) or ""):
                found.setdefault(_file_and_line(reason) or _begin_of(one), []).append(reason)
        for source, reasons in list(found.items())[:_MOST]:
            why = _GUARD.sub("", _first(reasons[-1].partition(" # ")[0]))
            said = f"torch.compile compiles it again {_times(len(reasons))}, because of {why}"
            yield Finding("recompilation", said, source)

    def _refused(self) -> Iterator[Finding]:
        texts = [_CAST.sub("", str(one.message)) for one in self._said]
        for one, text, after in zip(self._said, texts, [*texts, ""][1:], strict=True):
            # "Flash attention kernel not used because:", and the reason as a warning of its own.
            text = f"{text} {after}" if text.endswith("because:") else text
            for pattern, code in _FALLBACKS:
                if pattern.search(text):
                    source = f"{Path(one.filename).name}, line {one.lineno}"
                    yield Finding(code, _first(text), source)
                    break


def _sources(explain: Callable[[], Any]) -> dict[str, str]:
    """The lines of graph breaks by their reasons."""
    found = {}
    # Whatever torch cannot explain has been measured all the same.
    with suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for one in explain().break_reasons:
            frame = one.user_stack[-1]
            found[_first(one.reason)] = f"{Path(frame.filename).name}, line {frame.lineno}"
    return found


def _graph_breaks() -> dict[str, int]:
    dynamo = sys.modules.get("torch._dynamo.utils")
    counters = getattr(dynamo, "counters", None) or {}
    return {str(reason): int(n) for reason, n in dict(counters.get("graph_break", {})).items()}


def _compilations() -> list[Any]:
    dynamo = sys.modules.get("torch._dynamo.utils")
    metrics = getattr(dynamo, "get_compilation_metrics", None)
    return list(metrics()) if metrics is not None else []


def _begin_of(one: Any) -> str:
    file, line = getattr(one, "co_filename", None), getattr(one, "co_firstlineno", None)
    return f"{Path(file).name}, line {line}" if file and line else ""


def _first(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = lines[0] if lines else "no reason is told"
    told = told if len(told) <= _LONGEST else f"{told[:_LONGEST]}..."
    return f"{told.rstrip('.')}."


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _file_and_line(text: str) -> str:
    """The innermost line of code that a reason tells."""
    found = [match for pattern in _LINES for match in pattern.finditer(text)]
    return f"{Path(found[-1]['file']).name}, line {found[-1]['line']}" if found else ""
