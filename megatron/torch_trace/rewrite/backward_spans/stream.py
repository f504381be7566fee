# SPDX-License-Identifier: Apache-2.0
"""A raw trace with the backward spans of its modules, in one pass over the text.

During training only the forward pass of modules leaves spans: hooks for the other one cost several
times as much as these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from megatron.torch_trace.analysis.timeline.span_names import RECOMPUTE

if TYPE_CHECKING:
    from megatron.torch_trace.rewrite.backward_spans.raw_events import RawEvents

_END = b"\n  },\n"
_LONGEST = 64 << 20
"""Text without the end of an event that is taken for another format, and left as it is."""
_AGAIN = f" ({RECOMPUTE})".encode()
_EVENT = """  {
    "ph": "X", "cat": "%s", "name": "%s (backward)", "pid": %s, "tid": %s,
    "ts": %d.%03d, "dur": %d.%03d,
    "args": {
      "drawn from": "Sequence number"
    }
  },
"""


def with_backward_spans(
    blocks: Iterable[bytes], failed: Callable[[Exception], None]
) -> Iterator[bytes]:
    """The text of a raw trace of Kineto's, with backward spans before its last event.

    Args:
        blocks: of the text.
        failed: called where they cannot be drawn; the text is as it was then.
    """
    # Traces without spans of modules are compressed without numpy.
    from megatron.torch_trace.rewrite.backward_spans.event_columns import EventColumns
    from megatron.torch_trace.rewrite.backward_spans.raw_events import RawEvents

    wanted = RawEvents()
    columns = EventColumns(wanted)
    events: RawEvents | None = wanted
    rest = b""
    begun = False
    for block in blocks:
        whole = block.rfind(_END) + len(_END)
        if whole < len(_END):
            # An end may lie across two blocks.
            block, rest = rest + block, b""
            whole = block.rfind(_END) + len(_END)
        if events is None or (whole < len(_END) and len(block) > _LONGEST):
            events = None
            yield rest + block
            rest = b""
            continue
        if whole < len(_END):
            rest = block
            continue
        text = block[:whole]
        try:
            columns.add(rest, text)
        except Exception as error:  # a trace is worth more than what is drawn into it
            events = None
            failed(error)
        begun = True
        yield rest
        yield text
        rest = block[whole:]
    if events is not None and begun:
        try:
            yield b"".join(_drawn(events))
        except Exception as error:
            failed(error)
    yield rest


def _drawn(events: RawEvents) -> Iterator[bytes]:
    from megatron.torch_trace.rewrite.backward_spans.drawing import backward_spans, gpu_spans

    names, tracks = list(events.names), list(events.tracks)
    spans = backward_spans(events)
    for category, found in (
        ("user_annotation", spans),
        ("gpu_user_annotation", gpu_spans(events, spans)),
    ):
        for span in found:
            process, thread = tracks[span.track]
            name = names[span.name].removesuffix(_AGAIN)
            values = (name.decode(), process.decode(), thread.decode())
            duration = span.end - span.start
            text = _EVENT % (category, *values, *divmod(span.start, 1000), *divmod(duration, 1000))
            yield text.encode()
