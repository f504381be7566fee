# SPDX-License-Identifier: Apache-2.0
"""Changing single fields of an event's text; all others keep their digits.

`inner` is the text of an event without the braces around it.
"""

from __future__ import annotations

import json

import msgspec

from megatron.torch_trace.format.long_names import shortened
from megatron.torch_trace.format.times import text_of_ns
from megatron.torch_trace.format.tracks import Track as Track
from megatron.torch_trace.rewrite.selection import WRITTEN_DURATION, join_object


def entries_of(inner: bytes) -> dict[str, bytes]:
    """Key -> value as text, in the order of the event."""
    raw = msgspec.json.decode(b"{%b}" % inner, type=dict[str, msgspec.Raw])
    return {key: bytes(value) for key, value in raw.items()}


def replaced(inner: bytes, values: dict[str, bytes]) -> bytes:
    """The event with other values for some keys."""
    return join_object(entries_of(inner) | values)[1:-1]


def on_track(inner: bytes, track: Track) -> bytes:
    """The event on another track, whose ids are numbers."""
    return replaced(inner, {"pid": str(track[0]).encode(), "tid": str(track[1]).encode()})


def clipped(inner: bytes, ns: int) -> bytes:
    """The event with another duration; its arguments keep the one that was written."""
    entries = entries_of(inner)
    args = entries.get("args", b"{}")
    if args.startswith(b"{"):
        kept = entries_of(args.strip()[1:-1]) | {WRITTEN_DURATION: entries["dur"]}
        entries["args"] = join_object(kept)
    return join_object(entries | {"dur": text_of_ns(ns).encode()})[1:-1]


def renamed(inner: bytes, name: str, most: int) -> bytes:
    """The event with its name cut to `most` characters."""
    return replaced(inner, {"name": json.dumps(shortened(name, most)).encode()})
