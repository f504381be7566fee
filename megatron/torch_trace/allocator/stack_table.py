# SPDX-License-Identifier: Apache-2.0
"""Call stacks of allocations, each kept once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

UNKNOWN_STACK = 0
"""The number of the stack that was not recorded."""

Stack = tuple[str, ...]
_PLAIN = (str, int, type(None))
_ODD = "??"
"""In the place of a frame that torch does not write: a stranger's value may take for ever to print.
"""


class StackTable:
    """Stacks by number, the innermost frame first; a frame is `file:line function`.

    Frames of torch's own C++ have no file that says anything and stand as `function` alone.
    """

    def __init__(self) -> None:
        self.stacks: list[Stack] = [()]
        self._numbers: dict[Stack, int] = {(): UNKNOWN_STACK}
        self._texts: dict[tuple[Any, Any, Any], str] = {}
        self._seen: dict[int, tuple[Any, int]] = {}

    def number(self, frames: Any) -> int:
        """The number of a stack.

        Args:
            frames: as a snapshot has them, dictionaries with filename, line and name.
        """
        if not frames or not isinstance(frames, (list, tuple)):
            return UNKNOWN_STACK
        # The reader hands out the same tuple for equal stacks; held here, its id stays its own.
        seen = self._seen.get(id(frames))
        if seen is not None and seen[0] is frames:
            return seen[1]
        number = self.number_of(tuple(self._text(one) for one in frames if isinstance(one, dict)))
        # A list is of one entry alone: kept, those of millions of entries would fill the memory.
        if isinstance(frames, tuple):
            self._seen[id(frames)] = (frames, number)
        return number

    def number_of(self, stack: Stack) -> int:
        """The number of a stack whose frames are texts already."""
        number = self._numbers.setdefault(stack, len(self.stacks))
        if number == len(self.stacks):
            self.stacks.append(stack)
        return number

    def _text(self, frame: dict[str, Any]) -> str:
        key = file, line, name = (frame.get("filename"), frame.get("line"), frame.get("name"))
        if not (isinstance(line, _PLAIN) and isinstance(file, _PLAIN) and isinstance(name, _PLAIN)):
            return _ODD
        text = self._texts.get(key)
        if text is None:
            known = file and file != "??"
            text = f"{file}:{line} {name}" if known and line else str(name)
            self._texts[key] = text
        return text

    def python(self, number: int) -> Stack:
        """Its frames in Python files, where there are any; else all."""
        stack = self.stacks[number]
        return tuple(one for one in stack if is_python(one)) or stack


def is_python(frame: str) -> bool:
    """Whether a frame is one of Python."""
    return ".py:" in frame


def shortened(stack: Sequence[str]) -> Stack:
    """Without the frames that only pass a call on: torch's module calls, wrappers, dispatch."""
    kept = tuple(one for one in stack if not any(part in one for part in _PASSING_ON))
    return kept or tuple(stack)


_PASSING_ON = (
    "torch/nn/modules/module.py",
    "torch/utils/_contextlib.py",
    "torch/_dynamo/",
    "torch/autograd/function.py",
    "torch/autograd/graph.py",
    "torch/amp/autocast_mode.py",
    "torch/optim/optimizer.py",
    "torch/distributed/c10d_logger.py",
    "torch/_inductor/",
    "torch/_functorch/",
)
