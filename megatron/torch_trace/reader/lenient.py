# SPDX-License-Identifier: Apache-2.0
"""Reading what is almost JSON and writing it down as JSON, saying what was changed.

Kineto prints names and metadata raw, so a value may hold quotes, backslashes, control characters or
`inf`. Nothing that is already right is touched: numbers keep their digits.

Work is linear in the text, whatever it holds: no pattern below has two ways to match one run of
blanks, and no position is read again for each fault before it.

    {"name": "f("x")", "bw": inf,}   ->   {"name": "f(\\"x\\")", "bw": null}
                                          unescaped_quote, bare_word, trailing_comma
"""

from __future__ import annotations

import re
from collections import Counter
from math import isfinite

_SPACE = re.compile(r"[ \t\n\r]*")
_STRICT_STRING = re.compile(
    r'"[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*"'
)
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_LITERAL = re.compile(r"(?:true|false|null)(?![\w.])")
_WORD = re.compile(r'[^,\]}{"\[:\n]*')
_NUMBER_ENDS = re.compile(r"[ \t\n\r]*(?:[,\]}]|\Z)")

# What may follow the closing quote, by where the string stands. A quote that is followed by
# anything else belongs to the string.
_AFTER_KEY = re.compile(r"\s*:")
_AFTER_VALUE = re.compile(r'\s*(?:,\s*)?(?:"[^"\\\n]{1,80}"\s*:|[}\]](?!")|\Z)')
_AFTER_ITEM = re.compile(r'\s*(?:,\s*(?:["\[{\d\]-]|true|false|null|nan|inf)|\])', re.IGNORECASE)

_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
# Every escape is matched, so that the u behind an escaped backslash is no escape.
_ANY_ESCAPE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.",
    re.DOTALL,
)
_CONTROL = {code: f"\\u{code:04x}" for code in range(32)}
_CONTROL.update({8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"})

_MAX_DEPTH = 100
_MAX_STRING = 1 << 20


class NotJsonError(ValueError):
    """No sense can be made of the text from `position` on."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


def whole_surrogates(string: str) -> tuple[str, int]:
    """A JSON text whose halves of surrogate pairs are U+FFFD, and how many there were."""
    if "\\u" not in string:
        return string, 0
    halves = 0

    def replace(match: re.Match[str]) -> str:
        nonlocal halves
        if not match[1]:
            return match[0]
        halves += 1
        return "\\ufffd"

    return _ANY_ESCAPE.sub(replace, string), halves


class LenientParser:
    """Parse values from `text` up to `end`; `faults` counts what had to be repaired, by kind."""

    def __init__(self, text: str, end: int | None = None) -> None:
        self.text = text
        self.end = len(text) if end is None else end
        self.faults: Counter[str] = Counter()

    def _first(self, at: int) -> str:
        """The character at `at`; nothing at the end."""
        return self.text[at] if at < self.end else ""

    def value(
        self, at: int, after: re.Pattern[str] = _AFTER_VALUE, depth: int = 0
    ) -> tuple[str, int]:
        """Read the value that begins at `at`.

        Returns:
            The value as strict JSON and the position behind it.

        Raises:
            NotJsonError: no value can be made out.
        """
        at = self.skip_space(at)
        first = self._first(at)
        if depth > _MAX_DEPTH:
            raise NotJsonError(at)
        if first == "{":
            return self._object(at, depth)
        if first == "[":
            return self._array(at, depth)
        if first == '"':
            return self.string(at, after)
        return self._scalar(at)

    def member(self, at: int, depth: int = 0) -> tuple[str, str, int]:
        """Read `"key": value`: the key as JSON text, the value as JSON text, the end."""
        at = self.skip_space(at)
        if self._first(at) != '"':
            raise NotJsonError(at)
        key, at = self.string(at, _AFTER_KEY)
        at = self.skip_space(at)
        if self._first(at) != ":":
            raise NotJsonError(at)
        value, at = self.value(at + 1, _AFTER_VALUE, depth + 1)
        return key, value, at

    def skip_space(self, at: int) -> int:
        match = _SPACE.match(self.text, at, self.end)
        return match.end() if match else at

    def string(self, at: int, after: re.Pattern[str]) -> tuple[str, int]:
        """Read a string; `after` decides which quote closes it."""
        match = _STRICT_STRING.match(self.text, at, self.end)
        if match and after.match(self.text, match.end(), self.end):
            return self._whole_surrogates(match[0]), match.end()
        position = at + 1
        while True:
            quote = self.text.find('"', position, min(self.end, at + _MAX_STRING))
            if quote < 0:
                raise NotJsonError(at)
            if after is _AFTER_KEY and not after.match(self.text, quote + 1, self.end):
                # No key holds quotes; one that seems to has swallowed its neighbour.
                raise NotJsonError(at)
            if after.match(self.text, quote + 1, self.end):
                return self._clean(self.text[at + 1 : quote]), quote + 1
            position = quote + 1

    def _clean(self, inner: str) -> str:
        """What stands between two quotes, as a strict JSON string."""
        pieces = ['"']
        position = 0
        while position < len(inner):
            plain = _PLAIN.match(inner, position)
            if plain:
                pieces.append(plain[0])
                position = plain.end()
                continue
            char = inner[position]
            if char == "\\":
                match = _ESCAPE.match(inner, position)
                if match:
                    pieces.append(match[0])
                    position = match.end()
                    continue
                pieces.append("\\\\")
                self.faults["stray_backslash"] += 1
            elif char == '"':
                pieces.append('\\"')
                self.faults["unescaped_quote"] += 1
            else:
                pieces.append(_CONTROL[ord(char)])
                self.faults["control_character"] += 1
            position += 1
        pieces.append('"')
        return self._whole_surrogates("".join(pieces))

    def _whole_surrogates(self, string: str) -> str:
        whole, halves = whole_surrogates(string)
        if halves:
            self.faults["lone_surrogate"] += halves
        return whole

    def _object(self, at: int, depth: int) -> tuple[str, int]:
        members: list[str] = []
        at += 1
        while True:
            at = self._skip_commas(at, bool(members))
            if self._first(at) == "}":
                return "{" + ", ".join(members) + "}", at + 1
            key, value, at = self.member(at, depth)
            members.append(f"{key}: {value}")

    def _array(self, at: int, depth: int) -> tuple[str, int]:
        items: list[str] = []
        at += 1
        while True:
            at = self._skip_commas(at, bool(items))
            if self._first(at) == "]":
                return "[" + ", ".join(items) + "]", at + 1
            if self._first(at) == "}":
                raise NotJsonError(at)
            item, at = self.value(at, _AFTER_ITEM, depth + 1)
            items.append(item)

    def _skip_commas(self, at: int, expected: bool) -> int:
        """Go to the next member, item or closing bracket; exactly one comma is right."""
        commas = 0
        at = self.skip_space(at)
        while self._first(at) == ",":
            commas += 1
            at = self.skip_space(at + 1)
        if at >= self.end:
            raise NotJsonError(at)
        closing = self.text[at] in "]}"
        if commas > (expected and not closing):
            self.faults["trailing_comma"] += 1
        elif expected and not closing and not commas:
            self.faults["missing_comma"] += 1
        return at

    def _scalar(self, at: int) -> tuple[str, int]:
        for pattern in (_LITERAL, _NUMBER):
            match = pattern.match(self.text, at, self.end)
            if match and _NUMBER_ENDS.match(self.text, match.end(), self.end):
                return match[0], match.end()
        word = _WORD.match(self.text, at, self.end)
        end = word.end() if word else at
        if not _NUMBER_ENDS.match(self.text, end, self.end):
            raise NotJsonError(at)
        bare = self.text[at:end].strip()
        if len(bare) > 40:
            raise NotJsonError(at)
        if not bare:
            if end >= self.end:
                raise NotJsonError(at)
            self.faults["empty_value"] += 1
            return "null", end
        try:
            number = float(bare.replace("_", "x"))
        except ValueError:
            number = float("inf")
        if isfinite(number):
            self.faults["bad_number"] += 1
            return str(int(bare)) if bare.lstrip("+-").isdecimal() else repr(number), end
        self.faults["bare_word"] += 1
        return "null", end
