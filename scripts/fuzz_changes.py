# SPDX-License-Identifier: Apache-2.0
"""What is done to a healthy file before it is read: to its values, its bytes, its compression."""

from __future__ import annotations

import copy
import gzip
import json
import math
import random
from collections.abc import Callable
from typing import Any

import zstandard

HUGE = 10**400
_LONG = {"@deep@": "[" * 3_000 + "]" * 3_000, "@long@": "9" * 5_000}

ODD: tuple[Any, ...] = (
    None, True, False, "", " ", "x", "-1", "12.5", "1e999", "NaN", "0x10", "\0", "\ud800",
    "é" * 99, "a" * 70_000, '"', "\\", "<script>", "\x1b[31m", "\u2028", 0, -1, 1, 3, 0.5, -0.0,
    1e-300, 1e308, 1 << 31, (1 << 53) + 1, 1 << 62, (1 << 63) - 1, 1 << 63, -(1 << 63), 1 << 64,
    10**30, HUGE, -HUGE, math.nan, math.inf, -math.inf, [], {}, [None], [[]], {"": ""},
    [1, "a", None], {"name": {"a": 1}},
    "ProfilerStep#1", "ProfilerStep#99999999999999999999", "kernel", "X", "B", "M",
)  # fmt: skip
"""Values that nobody expects, some of which JSON does not know."""

_JSON_ONLY = (
    "@deep@",
    "@-@",
    "@1.@",
    "@.5@",
    "@+1@",
    "@01@",
    "@1e5@",
    "@1e999@",
    "@nul@",
    "@0x1@",
    "@long@",
)


def change_value(tree: Any, rng: random.Random, *, as_json: bool) -> None:
    """Change one value somewhere in `tree`: to an odd one, away, twice, or to another's value."""
    parent, key = _somewhere(tree, rng)
    if parent is None:
        return
    what = rng.randrange(10)
    value = parent[key]
    if what == 0 and len(parent) > 1:
        del parent[key]
    elif what == 1 and isinstance(parent, list):
        parent.insert(rng.randrange(len(parent) + 1), copy.deepcopy(value))
    elif what == 2 and isinstance(parent, dict):
        parent[rng.choice(("", "args", "x", "ts", "name"))] = parent.pop(key)
    elif what in (3, 4) and isinstance(value, (int, float)) and not isinstance(value, bool):
        parent[key] = rng.choice(
            (-value, value + 1, value - 1, value * 1000, value * (1 << 40), str(value), [value])
        )
    elif what == 5:
        other, its = _somewhere(tree, rng)
        if other is not None:
            parent[key] = copy.deepcopy(other[its])
    else:
        # A copy: later changes must not reach what other inputs are made of.
        parent[key] = copy.deepcopy(rng.choice((*ODD, *_JSON_ONLY) if as_json else ODD))


def _somewhere(tree: Any, rng: random.Random) -> tuple[Any, Any]:
    """A list or dictionary below `tree`, and a key of it."""
    parent, key = None, None
    for _ in range(30):
        if isinstance(tree, (list, dict)) and tree:
            if parent is not None and rng.random() < 0.1:
                break
            parent = tree
            key = rng.choice(list(tree)) if isinstance(tree, dict) else rng.randrange(len(tree))
            tree = tree[key]
        else:
            break
    return parent, key


def json_text(tree: Any, rng: random.Random) -> bytes:
    """The tree as JSON, or what comes close to it."""
    indent = rng.choice((None, None, 0, 2))
    text = json.dumps(tree, indent=indent, ensure_ascii=rng.random() < 0.7)
    for word in _JSON_ONLY:
        right = _LONG.get(word, word.strip("@"))
        text = text.replace(json.dumps(word), right)
    return text.encode("utf-8", "surrogatepass")


def change_bytes(data: bytes, rng: random.Random) -> bytes:
    """Bytes flipped, cut, put in, doubled, or blanks and marks that other systems write."""
    if not data:
        return data
    at = rng.randrange(len(data))
    length = min(len(data) - at, rng.choice((1, 1, 2, 7, 100, 5_000)))
    what = rng.randrange(9)
    if what == 0:
        return data[:at]
    if what == 1:
        return data[:at] + data[at + length :]
    if what == 2:
        return data[:at] + rng.randbytes(length) + data[at + length :]
    if what == 3:
        return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
    if what == 4:
        return data[:at] + data[at : at + length] * rng.choice((2, 3, 50)) + data[at + length :]
    if what == 5:
        return data[:at] + b"\0" * length + data[at + length :]
    if what == 6:
        marks = (
            b"\xff",
            b"\xc3(",
            b"\xed\xa0\x80",
            b'"',
            b"\\",
            b"{",
            b"}",
            b"]",
            b"[",
            b",",
            b":",
        )
        return data[:at] + rng.choice(marks) + data[at:]
    if what == 7:
        return data + rng.choice((data, b"\0" * 512, b"}", b"]}", b"garbage", b"\n\n", data[:at]))
    other = rng.randrange(len(data))
    return data[:at] + data[other : other + length] + data[at:]


def change_compression(data: bytes, rng: random.Random) -> bytes:
    """The file as some program leaves it: packed, in pieces, padded, cut, packed again."""
    at = rng.randrange(len(data) + 1)
    packed = rng.choice((_gzip, _zstd))
    ways: tuple[Callable[[], bytes], ...] = (
        lambda: packed(data),
        lambda: packed(data[:at]) + packed(data[at:]),
        lambda: packed(data) + rng.choice((b"\0" * 700, b"x", b"\x1f\x8b", b"(\xb5/\xfd", b"[]")),
        lambda: packed(data)[: rng.randrange(len(data) + 1)],
        lambda: change_bytes(packed(data), rng),
        lambda: packed(packed(data)),
        lambda: packed(data[:at]) + data[at:],
        lambda: packed(b"") + packed(data),
        lambda: _gzip(data[:at]) + _zstd(data[at:]),
        lambda: packed(data)[: rng.choice((1, 2, 3, 5, 10, 18))],
    )
    return rng.choice(ways)()


def _gzip(data: bytes) -> bytes:
    return gzip.compress(data, 1, mtime=0)


def _zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(data)
