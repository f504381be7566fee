# SPDX-License-Identifier: Apache-2.0
"""Starts and durations of a block's events as columns of integer nanoseconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatron.torch_trace.format.times import EXACT_FLOAT_US, NO_TIME, ns_of_text
from megatron.torch_trace.reader import EventBlock
from megatron.torch_trace.reader.event import Number, TimeText, decode_loosely, decode_strictly


def block_times(
    block: EventBlock[Any], events: Sequence[Any] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`ts` and `dur` of a block's events in integer nanoseconds.

    Args:
        block: of events.
        events: all of one type that it has; None for all.

    Returns:
        Two int64 arrays, a time for each event; NO_TIME where there is none. `ts` is relative to
        the file's `baseTimeNanoseconds`, or absolute if it has none.
    """
    events = block.events if events is None else events
    starts = _from_numbers([event.ts for event in events])
    durations = _from_numbers([event.dur for event in events])
    if starts is None or durations is None:
        texts = _time_texts(block)
        if len(events) < len(texts):
            kinds = set(map(type, events))
            pairs = zip(texts, block.events, strict=True)
            texts = [text for text, event in pairs if type(event) in kinds]
        if starts is None:
            starts = _from_texts([_raw_text(text.ts) for text in texts])
        if durations is None:
            durations = _from_texts([_raw_text(text.dur) for text in texts])
    return starts, durations


def _from_numbers(values: Sequence[Number]) -> NDArray[np.int64] | None:
    """Nanoseconds, or None if the numbers may have lost digits on their way here."""
    try:
        # In two thirds of the time of np.array, with None in half.
        microseconds = np.fromiter(values, dtype=np.float64, count=len(values))
    except (ValueError, OverflowError):
        return None
    missing = np.isnan(microseconds)
    if missing.any():
        microseconds[missing] = 0.0
    if np.abs(microseconds).max(initial=0.0) >= EXACT_FLOAT_US:
        if not all(type(value) is int and abs(value) < 1 << 52 for value in values if value):
            return None
        ns = microseconds.astype(np.int64) * 1000
    else:
        # Not microseconds * 1000: from 2**42 to 2**52 / 1000 that product ends in .5 for odd ns.
        whole = np.floor(microseconds)
        ns = whole.astype(np.int64) * 1000 + np.rint((microseconds - whole) * 1000.0).astype(
            np.int64
        )
    ns[missing] = NO_TIME
    return ns


def _time_texts(block: EventBlock[Any]) -> list[TimeText]:
    found = decode_strictly(block.text, TimeText) if block.text is not None else None
    if found is None or len(found) != len(block.events):
        found = [decode_loosely(text, TimeText) for text in block.texts]
    return found


def _raw_text(raw: Any) -> str:
    return bytes(raw).decode() if raw else ""


def _from_texts(texts: list[str]) -> NDArray[np.int64]:
    values = [ns_of_text(text) if text else None for text in texts]
    return np.array([NO_TIME if value is None else value for value in values], dtype=np.int64)
