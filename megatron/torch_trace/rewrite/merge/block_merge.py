# SPDX-License-Identifier: Apache-2.0
"""The part of `merge` that looks at one block: the text of its events with a rank's new numbers.

Almost all events are rewritten together: the numbers that change are found in their text by the
keys before them, `"pid": 42` or `"correlation": 7`, and nothing else is taken apart. A quote inside
a string is escaped, so no name can look like that. Where there are not as many of them as there
must be, events are rewritten one by one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from megatron.torch_trace.files.writer import join
from megatron.torch_trace.format.categories import FLOW_PHASES
from megatron.torch_trace.format.times import ns_of_text, text_of_ns
from megatron.torch_trace.reader import EventBlock, SlimEvent
from megatron.torch_trace.reader.event import Identity, ProcessEvent, decode_loosely
from megatron.torch_trace.reader.texts import Offsets, offsets_of
from megatron.torch_trace.rewrite.merge.rank_numbers import LARGEST_ID, RankPlan
from megatron.torch_trace.rewrite.selection import join_object
from megatron.torch_trace.rewrite.tracks.arrows import arrows_beside
from megatron.torch_trace.rewrite.tracks.relocations import Track

LINKING_IDS = ("correlation", "External id")
"""Arguments that link events of one rank, and must not link those of two."""

_LONGEST_TIME = 20
_AFTER_NUMBERS = np.frombuffer(b",} \t\r\n", dtype=np.uint8)


class BlockMerger:
    """Rewrite a block's events with the numbers of a plan; returns (text, events)."""

    def __init__(self, plan: RankPlan) -> None:
        self.plan = plan
        self._prefix = b"%d" % plan.prefix

    def __call__(self, block: EventBlock[ProcessEvent]) -> tuple[bytes, int]:
        tracks = self.plan.tracks
        moved = tracks.moves.of(block.offset)
        moved |= arrows_beside(block.event_texts, moved)
        mask = np.ones(len(block.events), dtype=bool)
        # `merge` names processes itself; what it leaves out is in the metadata.
        mask[tracks.replaced.get(block.offset, [])] = False
        alone = np.flatnonzero(mask).tolist()
        mask[list(moved)] = False
        together = [block.events[index] for index in np.flatnonzero(mask).tolist()]
        text = self._rewrite_together(block.event_texts.chosen(mask), together)
        if text is None:
            together = []
        else:
            alone = sorted(moved)
        texts = [self._rewrite(block.event_texts[index], moved.get(index)) for index in alone]
        joined = join([part for part in (text, join(texts)) if part])
        return joined, len(together) + len(texts)

    def _rewrite_together(self, text: bytes, events: list[ProcessEvent]) -> bytes | None:
        """Many events at once; None if they are not written as Kineto writes them."""
        arrows = [event.id for event in events if event.ph in FLOW_PHASES]
        if not self._takes_prefix(arrows):
            return None
        # A key that comes twice in one event would make up for one that is written otherwise.
        if text.count(b'"pid"') != len(events) or text.count(b'"id"') != len(arrows):
            return None
        letters = np.frombuffer(text, dtype=np.uint8)
        changes = _Changes(text)
        ids = offsets_of(text, b'id": ')
        own = [event.pid for event in events]
        new: dict[Identity, tuple[int, bytes]] = {}
        for pid in set(own):
            if type(pid) is not int or pid < 0:
                return None
            new[pid] = (len(str(pid)), b"%d" % self.plan.pids[pid])
        pids = _behind(letters, ids, b'"pid": ', b'id": ')
        if len(pids) != len(own) or not _stand_at(letters, pids, own):
            return None
        sizes, texts = zip(*map(new.__getitem__, own), strict=True) if own else ((), ())
        changes.replace(pids, sizes, texts)
        numbers = _behind(letters, ids, b'"id": ', b'id": ')
        if len(numbers) != len(arrows) or not _is_digit(letters[numbers]).all():
            return None
        changes.insert(numbers, self._prefix)
        links = (
            _behind(letters, ids, b'"External id": ', b'id": '),
            _behind(letters, offsets_of(text, b'on": '), b'"correlation": ', b'on": '),
        )
        for offsets in links:
            # What is no number, or a negative one, links nothing.
            changes.insert(offsets[_is_digit(letters[offsets])], self._prefix)
        if self.plan.shift_ns:
            starts = offsets_of(text, b'"ts": ') + 6
            found = _times(letters, starts)
            if found is None or len(starts) != len(events):
                return None
            times, ends = found
            later = [text_of_ns(ns).encode() for ns in (times + self.plan.shift_ns).tolist()]
            changes.replace(starts, (ends - starts).tolist(), later)
        return changes.made()

    def _takes_prefix(self, arrows: list[Identity]) -> bool:
        """Whether all of these ids get a number of their own; larger ones become text."""
        numbers = [i for i in arrows if type(i) is int and 0 <= i < LARGEST_ID]
        if len(numbers) < len(arrows):
            return False
        return type(self.plan.id_of(max(numbers, default=0))) is int

    def _rewrite(self, inner: bytes, track: Track | None) -> bytes:
        plan, text = self.plan, b"{%b}" % inner
        event = decode_loosely(text, SlimEvent)
        raw = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        entries = {key: bytes(value) for key, value in raw.items()}
        # An event of no process gets one too: by it, it can be told whose event it is.
        entries["pid"] = json.dumps(plan.pids[event.pid]).encode()
        if "tid" in entries and track:
            entries["tid"] = json.dumps(track[1]).encode()
        if event.id is not None:
            entries["id"] = json.dumps(plan.id_of(event.id)).encode()
        if plan.shift_ns and "ts" in entries:
            ns = ns_of_text(entries["ts"].decode())
            if ns is not None:
                entries["ts"] = text_of_ns(ns + plan.shift_ns).encode()
        if event.args is not None and "args" in entries:
            entries["args"] = self._rewrite_args(entries["args"])
        return join_object(entries)

    def _rewrite_args(self, text: bytes) -> bytes:
        if not any(key.encode() in text for key in LINKING_IDS):
            return text
        args = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        entries = {key: bytes(value) for key, value in args.items()}
        for key in LINKING_IDS:
            value = entries.get(key)
            if value is not None and value.isdigit():
                entries[key] = b"%d%b" % (self.plan.prefix, value)
        return join_object(entries)


@dataclass(slots=True)
class _Changes:
    """Pieces of a text that are replaced, in any order."""

    text: bytes
    starts: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)

    def replace(self, starts: Offsets, sizes: Sequence[int], pieces: Sequence[bytes]) -> None:
        self.starts += starts.tolist()
        self.sizes += sizes
        self.pieces += pieces

    def insert(self, starts: Offsets, piece: bytes) -> None:
        self.replace(starts, [0] * len(starts), [piece] * len(starts))

    def made(self) -> bytes:
        starts = np.array(self.starts, dtype=np.int64)
        order = np.argsort(starts)
        ends = (starts + np.array(self.sizes, dtype=np.int64))[order]
        bounds = zip([0, *ends.tolist()], [*starts[order].tolist(), len(self.text)], strict=True)
        text, pieces = self.text, self.pieces
        parts = [b""] * (2 * len(order) + 1)
        parts[::2] = [text[start:end] for start, end in bounds]
        parts[1::2] = [pieces[number] for number in order.tolist()]
        return b"".join(parts)


def _behind(letters: NDArray[np.uint8], offsets: Offsets, key: bytes, end: bytes) -> Offsets:
    """Where the values begin whose keys are `key`.

    Args:
        offsets: where `end`, with which the key ends, stands.
    """
    rest = key.removesuffix(end)
    for back, letter in enumerate(reversed(rest), 1):
        offsets = offsets[letters[offsets - back] == letter]
    return offsets + len(end)


def _stand_at(letters: NDArray[np.uint8], offsets: Offsets, numbers: Sequence[Identity]) -> bool:
    """Whether each number is written at its offset: a key may come twice in an event, or never."""
    codes = {number: code for code, number in enumerate(dict.fromkeys(numbers))}
    code_of = np.fromiter(map(codes.__getitem__, numbers), dtype=np.int64, count=len(numbers))
    last = len(letters) - 1
    for number, code in codes.items():
        here = offsets[code_of == code]
        digits = str(number).encode()
        for letter in digits:
            if not (letters[np.minimum(here, last)] == letter).all():
                return False
            here = here + 1
        if not np.isin(letters[np.minimum(here, last)], _AFTER_NUMBERS).all():
            return False
    return True


def _is_digit(letters: NDArray[np.uint8]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (letters >= ord("0")) & (letters <= ord("9"))
    return found


def _times(letters: NDArray[np.uint8], starts: Offsets) -> tuple[Offsets, Offsets] | None:
    """Nanoseconds, and where their text ends; None if not all are written as `123.456`."""
    ns, ends = np.zeros(len(starts), dtype=np.int64), starts.copy()
    point = np.zeros(len(starts), dtype=np.int64)
    reading = np.ones(len(starts), dtype=bool)
    for _ in range(_LONGEST_TIME):
        letter = letters[np.minimum(ends, len(letters) - 1)]
        digit, is_point = _is_digit(letter) & reading, (letter == ord(".")) & reading
        if (is_point & (point > 0)).any():
            return None
        point[is_point] = ends[is_point]
        ns[digit] = ns[digit] * 10 + (letter[digit] - ord("0"))
        reading = digit | is_point
        ends[reading] += 1
        if not reading.any():
            break
    whole = (point > starts) & (ends - point == 4) & ~reading
    return (ns, ends) if whole.all() else None
