# SPDX-License-Identifier: Apache-2.0
"""Writes allocator snapshots of any size as torch and Python's pickle write them, in little memory.

The history is that of a training: steps with micro-batches, whose layers allocate in the forward
pass what the backward pass frees; each place in the code has a Python stack of its own. Like torch,
the pickle writes a frame once and refers to it later, writes the text of compile_context anew in
each entry, and lets the two entries of a free share one stack.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import BinaryIO

_FRAME = 64 << 10
_BATCH = 1000
_BASE = 0x7F00_0000_0000
_FREED = object()
"""The frames of the last entry: those of a free are shared by its two entries."""
_PARAMETERS, _PARAMETER_BYTES = 400, 8 << 20
_PLACES = 12
"""In each layer, so many places in the code allocate; each third one frees at once."""


@dataclass(frozen=True, slots=True)
class _Entry:
    action: str
    address: int
    size: int
    stack: int
    """Number of a stack; -1 where autograd's own thread ran no Python."""


@dataclass(frozen=True, slots=True)
class _Frame:
    name: str
    file: str
    line: int


class _Pickle:
    """Codes of protocol 4, in frames as Python writes them."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._ready = bytearray()
        self._known: dict[object, bytes] = {}
        self._count = 0
        self.written = file.write(b"\x80\x04")

    def raw(self, codes: bytes) -> None:
        self._ready += codes

    def begin(self, code: bytes, known_as: object = None) -> None:
        """An object that may be referred to later."""
        if known_as is not None:
            self._known[known_as] = _reference(self._count)
        self._count += 1
        self._ready += code + b"\x94"

    def known(self, what: object) -> bool:
        """Refer to what was written before, if it was."""
        code = self._known.get(what)
        if code is not None:
            self._ready += code
        return code is not None

    def text(self, text: str) -> None:
        if not self.known(text):
            self.new_text(text, text)

    def new_text(self, text: str, known_as: object = None) -> None:
        as_bytes = text.encode()
        self.begin(b"\x8c" + bytes([len(as_bytes)]) + as_bytes, known_as)

    def number(self, value: int) -> None:
        if 0 <= value < 1 << 8:
            self._ready += b"K" + value.to_bytes(1, "little")
        elif 0 <= value < 1 << 16:
            self._ready += b"M" + value.to_bytes(2, "little")
        elif -(1 << 31) <= value < 1 << 31:
            self._ready += b"J" + value.to_bytes(4, "little", signed=True)
        else:
            size = value.bit_length() // 8 + 1
            self._ready += b"\x8a" + bytes([size]) + value.to_bytes(size, "little", signed=True)

    def flush(self, least: int = _FRAME) -> None:
        if len(self._ready) >= least:
            header = b"\x95" + len(self._ready).to_bytes(8, "little")
            self.written += self._file.write(header) + self._file.write(self._ready)
            self._ready.clear()


def _reference(number: int) -> bytes:
    return b"h" + bytes([number]) if number < 256 else b"j" + number.to_bytes(4, "little")


def write_snapshot(path: Path, size: int, *, layers: int = 24) -> int:
    """A snapshot of at least `size` bytes.

    Args:
        path: the file.
        size: bytes of its history.
        layers: of the model.

    Returns:
        Entries of its history.
    """
    training, entries, time = _training(layers), 0, 1_795_813_000_000_000
    with path.open("wb") as file:
        out = _Pickle(file)
        out.begin(b"}")
        out.raw(b"(")
        _write_parameters(out)
        out.text("device_traces")
        out.begin(b"]")
        out.begin(b"]")
        while out.written < size:
            out.raw(b"(")
            for entry in islice(training, _BATCH):
                time += 7
                _write(out, entry, time)
                out.flush()
            out.raw(b"e")
            entries += _BATCH
        out.raw(b"au.")
        out.flush(1)
    return entries


def _write_parameters(out: _Pickle) -> None:
    """The segments: blocks older than the history, without stacks."""
    out.text("segments")
    out.begin(b"]")
    out.raw(b"(")
    for number in range(_PARAMETERS):
        address = _BASE - (_PARAMETERS - number) * _PARAMETER_BYTES
        out.begin(b"}")
        out.raw(b"(")
        for key, value in (("device", 0), ("address", address), ("total_size", _PARAMETER_BYTES)):
            out.text(key)
            out.number(value)
        out.text("segment_type")
        out.text("large")
        out.text("blocks")
        out.begin(b"]")
        out.begin(b"}")
        out.raw(b"(")
        for key, value in (("address", address), ("size", _PARAMETER_BYTES)):
            out.text(key)
            out.number(value)
        out.text("state")
        out.text("active_allocated")
        out.text("frames")
        out.begin(b"]")
        out.raw(b"uau")
    out.raw(b"e")


def _write(out: _Pickle, entry: _Entry, time: int) -> None:
    out.begin(b"}")
    out.raw(b"(")
    out.text("action")
    out.text(entry.action)
    for key, value in (("addr", entry.address), ("size", entry.size), ("stream", 0)):
        out.text(key)
        out.number(value)
    out.text("time_us")
    out.number(time)
    out.text("compile_context")
    out.new_text("N/A")
    out.text("user_metadata")
    out.text("")
    out.text("frames")
    if entry.action != "free_completed" or not out.known(_FREED):
        _write_frames(out, entry.stack)
    out.raw(b"u")


def _write_frames(out: _Pickle, stack: int) -> None:
    out.begin(b"]", _FREED)
    if stack < 0:
        return
    out.raw(b"(")
    for frame in _frames(stack):
        if not out.known(frame):
            out.begin(b"}", frame)
            out.raw(b"(")
            for key, value in (("name", frame.name), ("filename", frame.file)):
                out.text(key)
                out.text(value)
            out.text("line")
            out.number(frame.line)
            out.raw(b"u")
    out.raw(b"e")


@cache
def _frames(stack: int) -> tuple[_Frame, ...]:
    """The call stack of one place in the code: its layer's, and what all have in common."""
    layer, place = divmod(stack, _PLACES)
    own = _Frame("forward", f"/opt/megatron/core/transformer/part_{place}.py", 100 + place)
    wrapped = [
        _Frame(name, "/opt/torch/nn/modules/module.py", line)
        for line, name in ((1778, "_call_impl"), (1767, "_wrapped_call_impl"))
    ]
    of_layer = _Frame("forward", "/opt/megatron/core/transformer/block.py", 300 + layer)
    outer = [_Frame(f"outer_{depth}", "/opt/training.py", 10 * depth) for depth in range(12)]
    return (own, *wrapped * 4, of_layer, *wrapped * 2, *outer)


def _training(layers: int) -> Iterator[_Entry]:
    """What the allocator does, for ever: one backward pass behind each forward pass."""
    free: dict[int, list[int]] = defaultdict(list)
    top = _BASE

    def allocate(stack: int, size: int) -> _Entry:
        nonlocal top
        if free[size]:
            return _Entry("alloc", free[size].pop(), size, stack)
        top += -(-size // 512) * 512
        return _Entry("alloc", top, size, stack)

    def let_go(one: _Entry, stack: int) -> Iterator[_Entry]:
        free[one.size].append(one.address)
        for action in ("free_requested", "free_completed"):
            yield _Entry(action, one.address, one.size, stack)

    while True:
        kept = []
        for layer in range(layers):
            for place in range(_PLACES):
                one = allocate(layer * _PLACES + place, (place + 1) << 20)
                yield one
                if place % 3:
                    kept.append(one)
                else:
                    yield from let_go(one, one.stack)
        for saved in reversed(kept):
            gradient = allocate(-1, saved.size)
            yield gradient
            yield from let_go(saved, -1)
            yield from let_go(gradient, -1)
