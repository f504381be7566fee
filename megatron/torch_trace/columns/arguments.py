# SPDX-License-Identifier: Apache-2.0
"""Events whose arguments are still text, and the arguments that readers of columns decode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from megatron.torch_trace.reader.event import Elements, RankCount, decode_loosely


class SlimEventWithArgs(msgspec.Struct, gc=False):
    """An event whose arguments are still text."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: int | float | str | None = None
    dur: int | float | str | None = None
    args: msgspec.Raw = msgspec.Raw()


class GpuArgs(msgspec.Struct, gc=False):
    """Arguments of a kernel, a copy or a memset."""

    correlation: int | None = None
    device: int | None = None
    stream: int | None = None
    bytes_: int | str | None = msgspec.field(default=None, name="bytes")
    name: str | None = msgspec.field(default=None, name="Collective name")
    in_nelems: Elements | None = msgspec.field(default=None, name="In msg nelems")
    out_nelems: Elements | None = msgspec.field(default=None, name="Out msg nelems")
    group_size: RankCount | None = msgspec.field(default=None, name="Group size")
    dtype: str | None = None
    group_name: str | None = msgspec.field(default=None, name="Process Group Name")
    group_description: str | None = msgspec.field(default=None, name="Process Group Description")
    group_ranks: str | None = msgspec.field(default=None, name="Process Group Ranks")
    seq: int | None = msgspec.field(default=None, name="Seq")
    src_rank: RankCount | None = msgspec.field(default=None, name="Src Rank")
    dst_rank: RankCount | None = msgspec.field(default=None, name="Dst Rank")


class CallArgs(msgspec.Struct, gc=False):
    """Arguments of a runtime or driver call."""

    correlation: int | None = None


class WaitArgs(msgspec.Struct, gc=False):
    """Arguments of a wait that CUPTI recorded: which stream waits, and for what."""

    correlation: int | None = None
    stream: int | None = None
    waits_on: int | None = msgspec.field(default=None, name="wait_on_stream")
    record: int | None = msgspec.field(default=None, name="wait_on_cuda_event_record_corr_id")


class OpArgs(msgspec.Struct, gc=False):
    """Arguments of an operator: what autograd knows it by, and the shapes if recorded."""

    dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input Dims")
    inputs: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Concrete Inputs")
    sequence: int | None = msgspec.field(default=None, name="Sequence number")
    forward_thread: int | None = msgspec.field(default=None, name="Fwd thread id")


_decoders: dict[type, Any] = {}


def arguments(events: Sequence[SlimEventWithArgs], kind: type[Any]) -> list[Any]:
    """Arguments of all events at once as `kind`; of the wrong type somewhere: one by one."""
    if kind not in _decoders:
        _decoders[kind] = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]
    decoder = _decoders[kind]
    try:
        # In a fifth of the time of the texts one by one; an event without arguments has no text.
        decoded: list[Any] = decoder.decode(b"[%b]" % b",".join([event.args for event in events]))
        if len(decoded) == len(events):
            return decoded
    except (msgspec.MsgspecError, UnicodeDecodeError):
        pass
    texts = [bytes(event.args) or b"{}" for event in events]
    try:
        decoded = decoder.decode(b"[%b]" % b",".join(texts))
        return decoded
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return [decode_loosely(text if text[:1] == b"{" else b"{}", kind) for text in texts]


def integer(value: Any) -> int | None:
    """An id or a size that may be written as text; None if it is neither."""
    try:
        return None if value is None else int(value)
    except (TypeError, ValueError):
        return None


def numbers(values: Sequence[int | None], nothing: int) -> NDArray[np.int64]:
    """A column of numbers, with `nothing` where there is none."""
    there = [nothing if value is None else value for value in values]
    try:
        return np.fromiter(there, dtype=np.int64, count=len(there))
    except OverflowError:
        # No id of torch is that large; whatever it is, it links nothing.
        limit = 1 << 63
        return np.array(
            [value if -limit <= value < limit else nothing for value in there], dtype=np.int64
        )
