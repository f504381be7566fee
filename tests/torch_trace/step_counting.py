# SPDX-License-Identifier: Apache-2.0
"""How much work the slow road does, in steps: what a backtracking matcher tries, characters that
are copied, searched or decoded. No clock, so a busy machine changes nothing."""

from __future__ import annotations

import contextlib
import re
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    from re import _constants as ops  # type: ignore[attr-defined]
    from re import _parser as parser  # type: ignore[attr-defined]
else:
    import sre_constants as ops
    import sre_parse as parser

Then = Callable[[int], int]


class Steps:
    def __init__(self) -> None:
        self.count = 0

    def add(self, number: int) -> None:
        self.count += number


class CountedText(str):
    """A text that counts what is copied or searched of it."""

    steps: Steps

    @classmethod
    def of(cls, text: str, steps: Steps) -> CountedText:
        counted = cls(text)
        counted.steps = steps
        return counted

    def __getitem__(self, where: Any) -> CountedText:
        found = super().__getitem__(where)
        self.steps.add(len(found))
        return CountedText.of(found, self.steps)

    def find(self, wanted: str, *bounds: Any) -> int:
        found = super().find(wanted, *bounds)
        end = bounds[1] if len(bounds) > 1 else len(self)
        self.steps.add((found if found >= 0 else min(end, len(self))) - (bounds or (0,))[0])
        return found

    def count(self, wanted: str, *bounds: Any) -> int:
        self.steps.add((bounds[1] if len(bounds) > 1 else len(self)) - (bounds or (0,))[0])
        return super().count(wanted, *bounds)

    def rstrip(self, *chars: Any) -> CountedText:
        found = super().rstrip(*chars)
        self.steps.add(len(self) - len(found))
        return CountedText.of(found, self.steps)


class CountedPattern:
    """A compiled pattern that counts the steps of a plain backtracking matcher."""

    def __init__(self, pattern: re.Pattern[Any], steps: Steps) -> None:
        self.pattern, self.steps = pattern, steps
        self.tree = list(parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE))

    def match(self, text: Any, at: int = 0, end: int | None = None) -> Any:
        end = len(text) if end is None else end
        self._walk(text, end, at)
        return self.pattern.match(text, at, end)

    def fullmatch(self, text: Any) -> Any:
        self._walk(text, len(text), 0)
        return self.pattern.fullmatch(text)

    def search(self, text: Any, at: int = 0) -> Any:
        found = self.pattern.search(text, at)
        self._tried(text, at, found.start() if found else len(text))
        return found

    def finditer(self, text: Any, at: int = 0) -> Iterator[Any]:
        for found in self.pattern.finditer(text, at):
            self._tried(text, at, found.start())
            at = max(found.end(), at + 1)
            yield found
        self._tried(text, at, len(text))

    def sub(self, new: Any, text: Any) -> Any:
        for _ in self.finditer(text):
            pass
        return self.pattern.sub(new, text)

    def _tried(self, text: Any, start: int, end: int) -> None:
        for at in range(start, end + 1):
            self._walk(text, len(text), at)

    def _walk(self, text: Any, end: int, at: int) -> None:
        _Walk(text, end, self.steps).sequence(self.tree, 0, at, lambda here: here)


class _Walk:
    def __init__(self, text: Any, end: int, steps: Steps) -> None:
        # Indexed as it is: looking at a character is a step, not a copy.
        self.text = str(text) if isinstance(text, str) else text.decode("latin-1")
        self.end, self.steps = end, steps

    def sequence(self, items: Any, number: int, at: int, then: Then) -> int:
        if number == len(items):
            return then(at)
        return self.item(
            items[number], at, lambda here: self.sequence(items, number + 1, here, then)
        )

    def item(self, item: Any, at: int, then: Then) -> int:
        self.steps.add(1)
        op, value = item
        if op in (ops.LITERAL, ops.NOT_LITERAL, ops.IN, ops.ANY):
            return then(at + 1) if self.one(item, at) else -1
        if op is ops.AT:
            assert value is ops.AT_END_STRING
            return then(at) if at == self.end else -1
        if op is ops.SUBPATTERN:
            return self.sequence(list(value[3]), 0, at, then)
        if op is ops.BRANCH:
            found = (self.sequence(list(branch), 0, at, then) for branch in value[1])
            return next((end for end in found if end >= 0), -1)
        if op in (ops.ASSERT, ops.ASSERT_NOT):
            holds = self.sequence(list(value[1]), 0, at, lambda here: here) >= 0
            return then(at) if holds is (op is ops.ASSERT) else -1
        assert op in (ops.MAX_REPEAT, ops.MIN_REPEAT), op
        low, high, inner = value
        return self.repeat(list(inner), low, high, at, then)

    def repeat(self, inner: Any, low: int, high: int, at: int, then: Then) -> int:
        if len(inner) == 1 and inner[0][0] in (ops.LITERAL, ops.NOT_LITERAL, ops.IN, ops.ANY):
            end = at
            while end - at < high and self.one(inner[0], end):
                self.steps.add(1)
                end += 1
            while end - at >= low:
                self.steps.add(1)
                found = then(end)
                if found >= 0:
                    return found
                end -= 1
            return -1

        def again(here: int, number: int) -> int:
            if number < high:
                more = lambda there: again(there, number + 1) if there > here else -1  # noqa: E731
                found = self.sequence(inner, 0, here, more)
                if found >= 0:
                    return found
            return then(here) if number >= low else -1

        return again(at, 0)

    def one(self, item: Any, at: int) -> bool:
        if at >= self.end:
            return False
        op, value = item
        if op is ops.ANY:
            return True
        if op in (ops.LITERAL, ops.NOT_LITERAL):
            return (ord(self.text[at]) == value) is (op is ops.LITERAL)
        char, negated = self.text[at], value[0][0] is ops.NEGATE
        return any(_in(choice, char) for choice in value[negated:]) is not negated


def _in(choice: Any, char: str) -> bool:
    op, value = choice
    if op is ops.LITERAL:
        return ord(char) == value
    if op is ops.RANGE:
        return bool(value[0] <= ord(char) <= value[1])
    assert op is ops.CATEGORY, op
    name = str(value)
    holds = {
        "SPACE": char.isspace(),
        "DIGIT": char.isdigit(),
        "WORD": char.isalnum() or char == "_",
    }[name.rpartition("_")[2]]
    return holds is not ("NOT" in name)


class _CountedDecoder:
    def __init__(self, decoder: Any, steps: Steps) -> None:
        self.decoder, self.steps = decoder, steps

    def raw_decode(self, text: str) -> Any:
        try:
            value, end = self.decoder.raw_decode(str(text))
        except (ValueError, RecursionError):
            # It counts the lines before the fault as well.
            self.steps.add(2 * len(text))
            raise
        self.steps.add(end)
        return value, end

    def decode(self, text: str) -> Any:
        self.steps.add(len(text))
        return self.decoder.decode(text)


@contextlib.contextmanager
def counted(*modules: types.ModuleType) -> Iterator[Steps]:
    """Within it, the patterns and the strict parser of `modules` count their steps."""
    steps = Steps()
    limit = sys.getrecursionlimit()
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            for name, value in vars(module).copy().items():
                if isinstance(value, re.Pattern):
                    patch.setattr(module, name, CountedPattern(value, steps))
                elif name == "_STRICT":
                    patch.setattr(module, name, _CountedDecoder(value, steps))
        sys.setrecursionlimit(200_000)
        try:
            yield steps
        finally:
            sys.setrecursionlimit(limit)
