# SPDX-License-Identifier: Apache-2.0
"""Spans named by section: what Megatron marks for Nsight with nvtx_range_push and nvtx_range_pop.

    section Attention.forward.core_attention        the function that marks it, and its suffix

Torch traces do not hold NVTX ranges. Megatron's own stay as they are, on or off: to switch them on
would let a pop that does not match its push end training, so the calls are followed beside them.
A layer has a dozen of them, most where a module has a span already: hence a kind of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import FrameType
from typing import Any

from megatron.torch_profile.guard import Guard
from megatron.torch_profile.log import Slug
from megatron.torch_profile.patching import Patch, PatchSet
from megatron.torch_profile.spans.ranges import begin, end

_PUSH, _POP = "nvtx_range_push", "nvtx_range_pop"
_SINCE = (0, 10)


class Sections:
    """The open sections of one window on this rank."""

    def __init__(self) -> None:
        self.guard = Guard(Slug.SPANS_FAILED, "training goes on without spans of sections")
        self._open: list[Any] = []

    def push(self, name: str) -> None:
        """A section begins."""
        self._open.append(begin(f"section {name}"))

    def pop(self) -> None:
        """The innermost section ends; one that began before the window is not known."""
        if self._open:
            end(self._open.pop())

    def close(self) -> None:
        """Close what an exception or the window's end left open."""
        while self._open:
            self.pop()


@contextmanager
def section_spans() -> Iterator[Sections]:
    """While open, Megatron's sections leave spans; afterwards its names are its own again."""
    global _current
    _current = Sections()
    patches = _patches()
    patches.apply()
    try:
        yield _current
    finally:
        patches.remove()
        _current.close()
        _current = None


def _push(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    if _current is not None:
        # Whoever marks: the frames of wrapt are in C.
        _current.guard(_begin, _current, sys._getframe(1), args, kwargs)
    return wrapped(*args, **kwargs)


def _pop(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    try:
        return wrapped(*args, **kwargs)
    finally:
        if _current is not None:
            _current.guard(_current.pop)


def _begin(sections: Sections, marks: FrameType, args: Any, kwargs: Any) -> None:
    sections.push(_name(marks, *args, **kwargs))


def _name(marks: FrameType, msg: str | None = None, suffix: str | None = None, **_: Any) -> str:
    """As Megatron names it, but for the module's path: the function that marks, and the suffix."""
    code = marks.f_code
    where = msg or str(getattr(code, "co_qualname", code.co_name))  # Python 3.10 has no co_qualname
    return f"{where}.{suffix}" if suffix else where


@lru_cache(maxsize=1)
def _patches() -> PatchSet:
    """Every module that has the names: each looks them up in itself."""
    modules = [
        name
        for name, module in sorted(sys.modules.items())
        if name.startswith("megatron.") and vars(module).get(_PUSH) and vars(module).get(_POP)
    ]
    return PatchSet(
        tuple(
            Patch(module, name, wrapper, since=_SINCE)
            for module in modules
            for name, wrapper in ((_PUSH, _push), (_POP, _pop))
        )
    )


_current: Sections | None = None
