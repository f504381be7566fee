# SPDX-License-Identifier: Apache-2.0
"""What was wrong with a file: kinds of fault, how often, and at which byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

KINDS: dict[str, str] = {
    "not_utf8": "bytes that are not UTF-8, replaced by U+FFFD",
    "not_utf8_kept": "bytes that are not UTF-8, kept as they are",
    "control_character": "control characters inside strings, escaped",
    "lone_surrogate": "half of a surrogate pair, replaced by U+FFFD",
    "bare_word": "bare words where a number should be (inf, nan, N/A), replaced by null",
    "bad_number": "numbers that JSON does not allow, rewritten",
    "empty_value": "keys without a value, set to null",
    "stray_backslash": "stray backslashes, doubled",
    "unescaped_quote": "unescaped quotes inside strings, escaped",
    "trailing_comma": "trailing or doubled commas, removed",
    "missing_comma": "missing commas, added",
    "lost_event": "events that could not be repaired, dropped",
    "stray_text": "text between events that is no event, dropped",
    "second_document": "events of a second document after the end of the first, dropped",
    "second_document_kept": "documents after the end of the first, written unchanged",
    "text_after_end": "bytes after the end of the document, dropped",
    "second_events": "events of a second traceEvents in the document, dropped",
    "broken_array": "the list traceEvents is damaged; its events were found one by one",
    "lost_metadata": "metadata entries that could not be repaired, dropped",
    "truncated": "the file ends in the middle; whole events up to there were kept",
    "truncated_stream": "the compressed stream ends early; all events up to there were kept",
    "corrupt_stream": "the compressed stream is damaged; all events before the damage were kept",
}
"""Kind -> what it is and what was done about it, for people."""

LOSSES = frozenset(
    {
        "lost_event",
        "lost_metadata",
        "second_document",
        "text_after_end",
        "second_events",
        "broken_array",
        "truncated",
        "truncated_stream",
        "corrupt_stream",
        "stray_text",
    }
)
"""The kinds after which something may be missing; every other kind was repaired in place."""

_OFFSETS_KEPT = 5


@dataclass(slots=True)
class Damage:
    """Faults found so far, in bytes of the uncompressed text.

    Attributes:
        counts: kind -> number of times.
        offsets: kind -> the first few byte offsets: of the event or entry that was hit, or of the
            cut.
    """

    counts: Counter[str] = field(default_factory=Counter)
    offsets: dict[str, list[int]] = field(default_factory=dict)

    def add(self, kind: str, offset: int, times: int = 1) -> None:
        """Count a fault of `kind` at byte `offset`."""
        self.counts[kind] += times
        kept = self.offsets.setdefault(kind, [])
        if len(kept) < _OFFSETS_KEPT and offset not in kept:
            kept.append(offset)

    def include(self, other: Damage) -> None:
        """Add what was found elsewhere, for instance in one block, to this account."""
        for kind, times in other.counts.items():
            self.counts[kind] += times
            kept = self.offsets.setdefault(kind, [])
            kept.extend(o for o in other.offsets.get(kind, []) if o not in kept)
            kept.sort()
            del kept[_OFFSETS_KEPT:]

    def __bool__(self) -> bool:
        return bool(self.counts)

    def __iter__(self) -> Iterator[tuple[str, int, list[int]]]:
        """(kind, times, first offsets), in the order of `KINDS`."""
        for kind in KINDS:
            if self.counts[kind]:
                yield kind, self.counts[kind], self.offsets.get(kind, [])

    @property
    def repaired(self) -> int:
        """Faults that were mended without losing anything."""
        return sum(n for kind, n in self.counts.items() if kind not in LOSSES)

    @property
    def lost(self) -> int:
        """Faults after which something is missing."""
        return sum(n for kind, n in self.counts.items() if kind in LOSSES)

    def sentence(self) -> str:
        """All of it in one line: `2 x stray backslashes, doubled (first at byte 1234); ...`."""
        parts = []
        for kind, times, offsets in self:
            first = f" (first at byte {offsets[0]:,})" if offsets else ""
            parts.append(f"{times:,} x {KINDS[kind]}{first}")
        return "; ".join(parts)

    def as_json(self) -> dict[str, dict[str, object]]:
        """`{kind: {"count": n, "offsets": [...], "meaning": "..."}}`, only what was found."""
        return {
            kind: {"count": times, "offsets": offsets, "meaning": KINDS[kind]}
            for kind, times, offsets in self
        }
