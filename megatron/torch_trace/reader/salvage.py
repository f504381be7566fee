# SPDX-License-Identifier: Apache-2.0
"""The slow road: what a block that does not decode still holds, event by event.

Every whole event is kept, every event that can be mended is mended, and one that cannot costs only
itself: the next one is found by its look, an object that begins with a key of an event.

Work is linear in the block: `landmarks` says why.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, NoReturn

from megatron.torch_trace.reader.damage import Damage
from megatron.torch_trace.reader.landmarks import EVENT_KEYS, Allowance, Landmarks
from megatron.torch_trace.reader.lenient import LenientParser, NotJsonError, whole_surrogates

# No two parts of a pattern can match one run of blanks: that alone would take quadratic time.
_ARRAY_END = re.compile(r'\s*(?:,\s*)?\]\s*(?:,\s*(?:"|\Z)|\}|\Z)')
_FRAME_END = re.compile(
    r'\n {0,4}\]\s*(?:,\s*)?(?:"|\})|\}\s*\]\s*(?:,\s*"[A-Za-z]\w*"\s*:|(?:\}\s*)?\Z)'
)
_BETWEEN = re.compile(r"\s*,\s*(?=\{)")
_CONTINUED = re.compile(r'[\s,]*"((?:[^"\\\n]|\\.)*)"\s*[:,}]')
_NOTHING = re.compile(r"[\s,]*")
_EMPTY = re.compile(r"\{\s*\}")
_BLANKS = re.compile(r"\s*")
_COMMAS = re.compile(r"[ \t\n\r,]*")

_FIRST_PIECE = 512
_GROWTH = 8
_LONGEST_TOKEN = 16
"""Of those that are no string and no number."""


def _refuse(word: str) -> NoReturn:
    raise ValueError(word)


# NaN and Infinity pass Python's parser by default, but no other.
_STRICT = json.JSONDecoder(parse_constant=_refuse, parse_int=str, parse_float=str)


def _is_cut(error: ValueError, piece: str) -> bool:
    """Whether the parser failed because the piece ends."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    return error.msg.startswith("Unterminated") or error.pos > len(piece) - _LONGEST_TOKEN


@dataclass(slots=True)
class Salvage:
    """What was saved from a block.

    Attributes:
        texts: events as strict JSON.
        offsets: where each began, in bytes from the start of the block.
        damage: what had to be done, with offsets from the start of the file.
        end: position behind the `]` that closes traceEvents, in bytes from the start of the
            block; None if the block does not hold it.
        is_end_guessed: no such `]` was seen, only text behind which the block holds no event.
        unfinished: where an event begins that the block does not finish, or None.
    """

    texts: list[bytes] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    damage: Damage = field(default_factory=Damage)
    end: int | None = None
    is_end_guessed: bool = False
    unfinished: int | None = None


def salvage(block: bytes, offset: int) -> Salvage:
    """Save what can be saved.

    Args:
        block: text that begins inside traceEvents, between two events.
        offset: of its first byte in the file, for the account of damage.
    """
    return _Salvager(block, offset).run()


class _Salvager:
    def __init__(self, block: bytes, offset: int) -> None:
        # Bytes that are no UTF-8 become lone surrogates: text can be searched, nothing is lost.
        self.text = block.decode("utf-8", "surrogateescape")
        self.ascii = block.isascii()
        self.offset = offset
        self.result = Salvage()
        self.landmarks = Landmarks(self.text)
        self.allowance = Allowance(len(self.text))
        self._known = (0, 0)
        self._after_loss = False
        self._kept_to = -1

    def run(self) -> Salvage:
        at = 0
        while True:
            at = self._between(at)
            if at < 0:
                return self.result
            at = self._event(at)

    def _between(self, at: int) -> int:
        """From behind an event to the `{` of the next; -1 when there is none."""
        text = self.text
        separator = _BETWEEN.match(text, at) or (_BLANKS.match(text, at) if not at else None)
        if separator and text[separator.end() : separator.end() + 1] == "{":
            return separator.end()
        end = _ARRAY_END.match(text, at)
        if end:
            if "," in text[at : text.index("]", at)]:
                self._add("trailing_comma", at)
            self.result.end = self._bytes(text.index("]", at) + 1)
            return -1
        blank = _NOTHING.match(text, at)
        behind = blank.end() if blank else at
        if behind >= len(text):
            return -1
        if text[behind] == "{":
            commas = text.count(",", at, behind)
            if commas > 1 or (commas == 1 and at == 0):
                self._add("trailing_comma", at)
            elif at and not commas:
                self._add("missing_comma", at)
                self._after_loss = True
            return behind
        start = self.landmarks.next_start(behind)
        if self._closed_early(at, behind):
            self.result.texts.pop()
            self.result.damage.add("lost_event", self.offset + self.result.offsets.pop())
        else:
            self._add("stray_text", behind)
        self._after_loss = True
        if start < 0:
            # No more events: either the rest of the file's end, or rubbish. The caller knows.
            self.result.end = self._bytes(behind)
            self.result.is_end_guessed = True
            return -1
        return start

    def _closed_early(self, at: int, behind: int) -> bool:
        """Whether what follows an event are more members of it: keys that it does not have yet."""
        key = _CONTINUED.match(self.text, behind)
        if not key or not self.result.texts or at != self._kept_to:
            return False
        return key[1] in EVENT_KEYS.split("|") and key[1] not in _STRICT.decode(
            self.result.texts[-1].decode()
        )

    def _event(self, at: int) -> int:
        """Save the event whose `{` is at `at`; returns the position behind it."""
        lost_before, self._after_loss = self._after_loss, False
        strict = self._strict(at)
        if strict:
            value, end = strict
            # Where something is broken, an object without `ph` is a piece of an event.
            if (not lost_before or "ph" in value) and self._keep(self.text[at:end], at):
                self._kept_to = end
            return end
        limit = self.landmarks.next_clear_start(at + 1)
        if limit < 0 and not self.allowance:
            limit = self.landmarks.next_start(at + 1)
        to = self.landmarks.without_commas(limit) if limit >= 0 else len(self.text)
        parser = LenientParser(self.text, to)
        try:
            repaired, end = parser.value(at)
        except (NotJsonError, RecursionError):
            return self._lose(at, limit)
        if limit >= 0 and end < to and not _ARRAY_END.match(self.text, end):
            # The object closed too early: a quote or a bracket of it was hit.
            blank = _COMMAS.match(self.text, end, limit)
            is_blank = blank is not None and blank.end() == limit
            if not is_blank and self.landmarks.next_start(end) == limit:
                return self._lose(at, limit)
        if '"ph": ' not in repaired:
            return self._lose(at, limit)
        if self._keep(repaired, at):
            for kind, times in parser.faults.items():
                self._add(kind, at, times)
        return end

    def _strict(self, at: int) -> tuple[dict[str, Any], int] | None:
        """The object at `at` and the position behind it, if it is strict JSON.

        Python's parser counts the lines before a fault, so it is given a piece of the text: a
        longer one for as long as the object does not end in it.
        """
        size = _FIRST_PIECE
        while True:
            piece = self.text[at : at + size]
            try:
                value, length = _STRICT.raw_decode(piece)
            except RecursionError:
                self.allowance.spend(len(piece))
                return None
            except ValueError as error:
                cut = _is_cut(error, piece) and at + size < len(self.text)
                self.allowance.spend(len(piece) if cut else getattr(error, "pos", size))
                if not cut or not self.allowance:
                    return None
                size *= _GROWTH
            else:
                return value, at + length

    def _lose(self, at: int, limit: int) -> int:
        """Give up the event at `at`; returns where to go on."""
        self._after_loss = True
        if limit >= 0:
            self._add("lost_event", at)
            return limit
        self.allowance.spend(len(self.text) - at)
        inner = self.landmarks.next_start(at + 1)
        whole = self._strict(inner) if inner >= 0 else None
        if whole and "ph" in whole[0]:
            self._add("lost_event", at)
            return inner
        self.result.unfinished = self._bytes(at)
        end = _FRAME_END.search(self.text, at)
        if end:
            self._add("lost_event", at)
            self.result.unfinished = None
            return end.start()
        return len(self.text)

    def _keep(self, event: str, at: int) -> bool:
        if _EMPTY.fullmatch(event):
            return False
        if not event.startswith("{"):
            self._add("stray_text", at)
            return False
        try:
            data = event.encode()
        except UnicodeEncodeError:
            data = event.encode("utf-8", "surrogateescape").decode("utf-8", "replace").encode()
            self._add("not_utf8", at)
        # Valid for json.loads, but no text can hold it: neither UTF-8 nor any other library.
        clean, halves = whole_surrogates(event)
        if halves:
            self._add("lone_surrogate", at, halves)
            data = clean.encode("utf-8", "surrogateescape").decode("utf-8", "replace").encode()
        self.result.texts.append(data)
        self.result.offsets.append(self._bytes(at))
        return True

    def _add(self, kind: str, at: int, times: int = 1) -> None:
        self.result.damage.add(kind, self.offset + self._bytes(at), times)

    def _bytes(self, at: int) -> int:
        """Position in bytes of the character at `at`, from that of the one last asked for."""
        if self.ascii:
            return at
        char, byte = self._known
        between = self.text[min(char, at) : max(char, at)].encode("utf-8", "surrogateescape")
        byte += len(between) if at > char else -len(between)
        self._known = (at, byte)
        return byte
