# SPDX-License-Identifier: Apache-2.0
"""A raw trace with the backward spans of its modules, in one pass over the text.

During training only the forward pass of modules leaves spans: hooks for the other one cost several
times as much as these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from megatron.torch_trace.analysis.timeline.span_names import RECOMPUTE
from megatron.torch_trace.rewrite.backward_spans.pieces import Piece

if TYPE_CHECKING:
    from megatron.torch_trace.rewrite.backward_spans.raw_events import RawEvents

_END = b"\n  },\n"
_LONGEST = 64 << 20
"""Text without the end of an event that is taken for another format, and left as it is."""
_AGAIN = f" ({RECOMPUTE})".encode()
_EVENT = b"""  {
    "ph": "X", "cat": "%s", "name": "%s (backward)", "pid": %s, "tid": %s,
    "ts": """
_TIMES = b"""%d.%03d, "dur": %d.%03d,
    "args": {
      "drawn from": "Sequence number"
    }
  },
"""


def with_backward_spans(
    blocks: Iterable[bytes], failed: Callable[[Exception], None]
) -> Iterator[Piece]:
    """The text of a raw trace of Kineto's, with backward spans before its last event.

    Args:
        blocks: of the text.
        failed: called where they cannot be drawn; the text is as it was then.
    """
    # Traces without spans of modules are compressed without numpy.
    from megatron.torch_trace.rewrite.backward_spans.event_columns import EventColumns
    from megatron.torch_trace.rewrite.backward_spans.raw_events import RawEvents
    from megatron.torch_trace.rewrite.backward_spans.single_events import add_one_by_one
    from megatron.torch_trace.rewrite.backward_spans.text_words import BEFORE, BEYOND

    wanted = RawEvents()
    columns = EventColumns(wanted)
    events: RawEvents | None = wanted
    rest = b""
    for block in blocks:
        first = _first_end(block, BEFORE)
        if not first:
            # An end may lie across two blocks.
            block, rest = rest + block, b""
            first = _first_end(block, BEFORE)
        if events is None or (not first and len(block) > _LONGEST):
            events = None
            yield Piece(rest + block)
            rest = b""
            continue
        if not first:
            rest = block
            continue
        # One event lies across two blocks. Behind it are thousands, which are looked at in place.
        across = rest + block[:first]
        whole = max(first, _last_end(block, len(block) - BEYOND))
        counts = None
        try:
            add_one_by_one(events, across)
            if whole > first:
                counts = columns.add(block, first, whole)
        except Exception as error:  # a trace is worth more than what is drawn into it
            events = None
            failed(error)
        yield Piece(across)
        yield Piece(memoryview(block)[first:whole], counts)
        rest = block[whole:]
    whole = _last_end(rest, len(rest))
    yield Piece(rest[:whole])
    if events is not None and (whole or events.names):
        try:
            add_one_by_one(events, rest[:whole])
            yield Piece(b"".join(_drawn(events)))
        except Exception as error:
            failed(error)
    yield Piece(rest[whole:])


def _first_end(text: bytes, begin: int) -> int:
    """Where the first event has ended behind a position; 0 if none has."""
    at = text.find(_END, begin)
    return at + len(_END) if at >= 0 else 0


def _last_end(text: bytes, until: int) -> int:
    """Where the last event has ended before a position; 0 if none has."""
    at = text.rfind(_END, 0, max(0, until))
    return at + len(_END) if at >= 0 else 0


def _drawn(events: RawEvents) -> Iterator[bytes]:
    from megatron.torch_trace.rewrite.backward_spans.drawing import backward_spans, gpu_spans

    names, tracks = list(events.names), list(events.tracks)
    spans = backward_spans(events)
    for category, found in (
        (b"user_annotation", spans),
        (b"gpu_user_annotation", gpu_spans(events, spans)),
    ):
        begun: dict[tuple[int, int], bytes] = {}
        for span in found:
            what = span.name, span.track
            if what not in begun:
                name = names[span.name].removesuffix(_AGAIN)
                begun[what] = _EVENT % (category, name, *tracks[span.track])
            times = *divmod(span.start, 1000), *divmod(span.end - span.start, 1000)
            yield begun[what] + _TIMES % times
