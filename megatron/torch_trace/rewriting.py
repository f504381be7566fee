# SPDX-License-Identifier: Apache-2.0
"""Changing single fields of an event's text; all others keep their digits.

`inner` is the text of an event without the braces around it.
"""

from __future__ import annotations

import msgspec

from megatron.torch_trace.filters import join_object
from megatron.torch_trace.reader.event import Identity

Track = tuple[Identity, Identity]


def entries_of(inner: bytes) -> dict[str, bytes]:
    """Key -> value as text, in the order of the event."""
    raw = msgspec.json.decode(b"{%b}" % inner, type=dict[str, msgspec.Raw])
    return {key: bytes(value) for key, value in raw.items()}


def replaced(inner: bytes, values: dict[str, bytes]) -> bytes:
    """The event with other values for some keys."""
    return join_object(entries_of(inner) | values)[1:-1]


def placed(inner: bytes, track: Track) -> bytes:
    """The event on another track, whose ids are numbers."""
    return replaced(inner, {"pid": str(track[0]).encode(), "tid": str(track[1]).encode()})
