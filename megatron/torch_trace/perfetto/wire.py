# SPDX-License-Identifier: Apache-2.0
"""Protobuf's wire format, one message at a time; `shapes` does many of one form at once."""

from __future__ import annotations

_VARINT, _FIXED64, _BYTES = 0, 1, 2
_MASK = (1 << 64) - 1


def varint(value: int, width: int = 1) -> bytes:
    """A number in at least `width` bytes; padded, as decoders must accept, if it needs fewer."""
    value &= _MASK
    out = bytearray()
    while value > 0x7F or len(out) < width - 1:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def width_of(largest: int) -> int:
    """Bytes of a varint that holds numbers up to `largest`."""
    return max(1, -(-int(largest).bit_length() // 7))


def number_key(field: int) -> bytes:
    """What stands before a varint."""
    return varint(field << 3 | _VARINT)


def fixed_key(field: int) -> bytes:
    """What stands before eight bytes."""
    return varint(field << 3 | _FIXED64)


def bytes_key(field: int) -> bytes:
    """What stands before the length of a string or message."""
    return varint(field << 3 | _BYTES)


def number(field: int, value: int) -> bytes:
    return number_key(field) + varint(value)


def text(field: int, value: str | bytes) -> bytes:
    data = value.encode("utf-8", "replace") if isinstance(value, str) else value
    return bytes_key(field) + varint(len(data)) + data


def message(field: int, *parts: bytes) -> bytes:
    return text(field, b"".join(parts))
