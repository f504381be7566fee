# SPDX-License-Identifier: Apache-2.0
"""Reading what is almost JSON and writing it down as JSON, saying what was changed.

Kineto prints names and metadata raw, so a value may hold quotes, backslashes, control characters or
`inf`. Nothing that is already right is touched: numbers keep their digits.

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
_AFTER_VALUE = re.compile(r'\s*(?:(?:,\s*)?"[^"\\\n]{1,80}"\s*:|,?\s*[}\]](?!")|,?\s*\Z)')
_AFTER_ITEM = re.compile(r'\s*(?:,\s*(?:["\[{\d\]-]|true|false|null|nan|inf)|\])', re.IGNORECASE)

_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_SURROGATE = re.compile(
    r"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
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


class LenientParser:
    """Parse values from `text`; `faults` counts what had to be repaired, by kind."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.faults: Counter[str] = Counter()

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
        first = self.text[at : at + 1]
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
        if self.text[at : at + 1] != '"':
            raise NotJsonError(at)
        key, at = self.string(at, _AFTER_KEY)
        at = self.skip_space(at)
        if self.text[at : at + 1] != ":":
            raise NotJsonError(at)
        value, at = self.value(at + 1, _AFTER_VALUE, depth + 1)
        return key, value, at

    def skip_space(self, at: int) -> int:
        match = _SPACE.match(self.text, at)
        return match.end() if match else at

    def string(self, at: int, after: re.Pattern[str]) -> tuple[str, int]:
        """Read a string; `after` decides which quote closes it."""
        match = _STRICT_STRING.match(self.text, at)
        if match and after.match(self.text, match.end()):
            return self.whole_surrogates(match[0]), match.end()
        position = at + 1
        while True:
            quote = self.text.find('"', position, at + _MAX_STRING)
            if quote < 0:
                raise NotJsonError(at)
            if after is _AFTER_KEY and not after.match(self.text, quote + 1):
                # No key holds quotes; one that seems to has swallowed its neighbour.
                raise NotJsonError(at)
            if after.match(self.text, quote + 1):
                return self._clean(self.text[at + 1 : quote]), quote + 1
            position = quote + 1

    def _clean(self, inner: str) -> str:
        """What stands between two quotes, as a strict JSON string."""
        pieces = ['"']
        position = 0
        while position < len(inner):
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
            elif char < " ":
                pieces.append(_CONTROL[ord(char)])
                self.faults["control_character"] += 1
            else:
                pieces.append(char)
            position += 1
        pieces.append('"')
        return self.whole_surrogates("".join(pieces))

    def whole_surrogates(self, string: str) -> str:
        if "\\u" not in string and "\\U" not in string:
            return string

        def replace(match: re.Match[str]) -> str:
            # An escaped backslash before the u makes it plain text.
            before = string[: match.start()]
            if match[1] or (len(before) - len(before.rstrip("\\"))) % 2:
                return match[0]
            self.faults["lone_surrogate"] += 1
            return "\\ufffd"

        return _SURROGATE.sub(replace, string)

    def _object(self, at: int, depth: int) -> tuple[str, int]:
        members: list[str] = []
        at += 1
        while True:
            at = self._skip_commas(at, bool(members))
            if self.text[at : at + 1] == "}":
                return "{" + ", ".join(members) + "}", at + 1
            key, value, at = self.member(at, depth)
            members.append(f"{key}: {value}")

    def _array(self, at: int, depth: int) -> tuple[str, int]:
        items: list[str] = []
        at += 1
        while True:
            at = self._skip_commas(at, bool(items))
            if self.text[at : at + 1] == "]":
                return "[" + ", ".join(items) + "]", at + 1
            if self.text[at] == "}":
                raise NotJsonError(at)
            item, at = self.value(at, _AFTER_ITEM, depth + 1)
            items.append(item)

    def _skip_commas(self, at: int, expected: bool) -> int:
        """Go to the next member, item or closing bracket; exactly one comma is right."""
        commas = 0
        at = self.skip_space(at)
        while self.text[at : at + 1] == ",":
            commas += 1
            at = self.skip_space(at + 1)
        if at >= len(self.text):
            raise NotJsonError(at)
        closing = self.text[at] in "]}"
        if commas > (expected and not closing):
            self.faults["trailing_comma"] += 1
        elif expected and not closing and not commas:
            self.faults["missing_comma"] += 1
        return at

    def _scalar(self, at: int) -> tuple[str, int]:
        for pattern in (_LITERAL, _NUMBER):
            match = pattern.match(self.text, at)
            if match and _NUMBER_ENDS.match(self.text, match.end()):
                return match[0], match.end()
        word = _WORD.match(self.text, at)
        end = word.end() if word else at
        if not _NUMBER_ENDS.match(self.text, end):
            raise NotJsonError(at)
        bare = self.text[at:end].strip()
        if len(bare) > 40:
            raise NotJsonError(at)
        if not bare:
            if end >= len(self.text):
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
