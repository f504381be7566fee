# SPDX-License-Identifier: Apache-2.0
"""Ranges in the trace, begun and ended by the cheapest of torch's ways, with or without operators.

`torch.profiler.record_function` goes through torch's dispatcher twice, which costs four to seven
times as much as the functions that it stands for. What they leave in a trace is the same.

Operators are hidden thread by thread: torch has a switch for all that it records in a thread. It is
off while training runs in the window, and on for as long as a range that is wanted begins.
"""

from __future__ import annotations

from threading import get_ident
from types import TracebackType
from typing import Any

import torch
from torch.autograd.profiler import record_function

_autograd: Any = torch._C._autograd
_switch: Any = getattr(_autograd, "_enable_record_function", None)


def _enter_by_name(name: str) -> Any:
    return record_function(name).__enter__()


def _exit_by_name(begun: Any) -> None:
    begun.__exit__(None, None, None)


_enter: Any = getattr(_autograd, "_record_function_with_args_enter", None)
end: Any = getattr(_autograd, "_record_function_with_args_exit", None)
"""End a range, in the thread that began it."""
if _enter is None or end is None:  # private names, which a torch to come may lack
    _enter, end = _enter_by_name, _exit_by_name

_hidden_in: int | None = None
"""The thread whose operators leave nothing in the trace; what it runs backward, neither."""


def begin(name: str) -> Any:
    """Begin a range; what it returns ends it."""
    if _hidden_in is None or not _is_hidden():
        return _enter(name)
    _switch(True)
    try:
        return _enter(name)
    finally:
        _switch(False)


class Range:
    """A range around a block.

    Args:
        name: in the trace.
    """

    __slots__ = ("_begun", "_name")

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        self._begun = begin(self._name)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        end(self._begun)


def can_hide_operators() -> bool:
    """Whether this torch has the switch."""
    return _switch is not None


def hide_operators() -> None:
    """From now on operators of this thread leave nothing; `show_operators` must follow, here."""
    global _hidden_in
    _switch(False)
    _hidden_in = get_ident()


def show_operators() -> None:
    """What torch does by itself; a second call changes nothing."""
    global _hidden_in
    if _hidden_in is not None:
        _hidden_in = None
        _switch(True)


def shown(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Call, and record what operators run meanwhile; in wrapt's form."""
    if not _is_hidden():
        return wrapped(*args, **kwargs)
    _switch(True)
    try:
        return wrapped(*args, **kwargs)
    finally:
        # The window may have closed meanwhile.
        if _hidden_in is not None:
            _switch(False)


def _is_hidden() -> bool:
    # Autograd's threads take the switch over from the thread that runs backward, and give it back.
    return get_ident() == _hidden_in or (
        _hidden_in is not None and torch._C._current_graph_task_id() != -1
    )
