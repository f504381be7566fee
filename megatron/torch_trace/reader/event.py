# SPDX-License-Identifier: Apache-2.0
"""One event, typed; and the fast way from a block of text to a list of them.

Field names are the JSON's own where Python allows it. A field that an event does not have, or has
with a type that makes no sense, is None (or "" for `ph`, `cat`, `name`).
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, TypeVar

import msgspec
import msgspec.structs
from msgspec import UNSET, Struct, UnsetType, field

from megatron.torch_trace.format.rank_ranges import MOST_RANKS
from megatron.torch_trace.format.tracks import Identity as Identity

Number = int | float | str | None
Elements = Annotated[int, msgspec.Meta(le=1 << 48)]
"""Of a message; more are in no GPU's memory, and their bytes would not fit 64 bits."""
RankCount = Annotated[int, msgspec.Meta(le=MOST_RANKS)]
"""Ranks, or the number of one; no job has more."""


class SlimArgs(Struct, gc=False):
    """The arguments that deciding what to keep needs."""

    correlation: int | None = None
    stream: int | None = None
    external_id: int | None = field(default=None, name="External id")


class PlainEvent(Struct, gc=False):
    """An event without its arguments.

    Args:
        ts, dur: as decoded, in microseconds; floats from 2**43 on have lost digits. Take times
            from `times.block_times()`, which knows when to go back to the text.
    """

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Identity = None
    tid: Identity = None
    ts: Number = None
    dur: Number = None
    id: Identity = None


class SlimEvent(PlainEvent, gc=False):
    """An event as far as filters look at it; faster to decode than `Event`."""

    args: SlimArgs | None = None


class Args(SlimArgs, gc=False):
    """The arguments of an event that some analysis reads; all others stay in the text.

    Sizes are in bytes or elements as torch writes them. Lists stay what they are in the file:
    Kineto writes rank lists and split sizes as text, and cuts them after 30 entries.
    """

    device: int | None = None
    ev_idx: int | None = field(default=None, name="Ev Idx")
    sequence_number: int | None = field(default=None, name="Sequence number")
    fwd_thread_id: int | None = field(default=None, name="Fwd thread id")
    collective: str | None = field(default=None, name="Collective name")
    in_nelems: Elements | None = field(default=None, name="In msg nelems")
    out_nelems: Elements | None = field(default=None, name="Out msg nelems")
    group_size: RankCount | None = field(default=None, name="Group size")
    dtype: str | None = None
    group_name: str | None = field(default=None, name="Process Group Name")
    group_description: str | None = field(default=None, name="Process Group Description")
    group_ranks: str | None = field(default=None, name="Process Group Ranks")
    in_split: str | None = field(default=None, name="In split size")
    out_split: str | None = field(default=None, name="Out split size")
    seq: int | None = field(default=None, name="Seq")
    src_rank: RankCount | None = field(default=None, name="Src Rank")
    dst_rank: RankCount | None = field(default=None, name="Dst Rank")
    bytes_: int | str | None = field(default=None, name="bytes")
    python_id: int | None = field(default=None, name="Python id")
    python_parent_id: int | None = field(default=None, name="Python parent id")


class Event(SlimEvent, gc=False):
    """An event with the arguments of `Args`."""

    args: Args | None = None


class BareEvent(Struct, gc=False):
    """What kind of event it is and which arrow; decodes in half the time of `SlimEvent`."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    id: Identity = None


class ProcessEvent(Struct, gc=False):
    """Whose event it is and which arrow."""

    ph: str = ""
    pid: Identity = None
    id: Identity = None


class TrackEvent(Struct, gc=False):
    """Where and when an event is."""

    ph: str = ""
    cat: str = ""
    pid: Identity = None
    tid: Identity = None
    ts: Number = None
    dur: Number = None


class TimeText(Struct, gc=False):
    """Only the times of an event, as text: what a float cannot hold."""

    ts: msgspec.Raw | UnsetType = UNSET
    dur: msgspec.Raw | UnsetType = UNSET


EventT = TypeVar("EventT", bound=Struct)

_DECODERS: dict[type, msgspec.json.Decoder[Any]] = {}


class _Variants:
    """A block as the structs that a tag tells apart; for kinds with `variants`.

    A block that holds anything else is refused. Where one after the other is, trying is not worth
    its time, and most are not tried.

    Args:
        union: of the structs.
    """

    def __init__(self, union: Any) -> None:
        self._decoder = msgspec.json.Decoder(list[union])
        self._pause = self._left_out = 0

    def decode(self, text: bytes) -> list[Any] | None:
        if self._left_out < self._pause:
            self._left_out += 1
            return None
        self._left_out = 0
        try:
            found: list[Any] = self._decoder.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            self._pause = min(2 * self._pause + 1, _LONGEST_PAUSE)
            return None
        self._pause = 0
        return found


_LONGEST_PAUSE = 31
"""Blocks."""


@cache
def _variants_of(kind: type) -> _Variants | None:
    union = getattr(kind, "variants", None)
    return None if union is None else _Variants(union)


def list_decoder(kind: type[EventT]) -> msgspec.json.Decoder[list[EventT]]:
    """The decoder of a JSON array of `kind`, made once."""
    if kind not in _DECODERS:
        _DECODERS[kind] = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]
    return _DECODERS[kind]


def decode_strictly(text: bytes, kind: type[EventT]) -> list[EventT] | None:
    """Events of `text` (objects separated by commas), or None if it is not all strict and typed.

    Of a kind with `variants`, a union of structs that a tag tells apart, all are of these structs,
    or none is.

    msgspec is as strict as json.loads about everything but the encoding of what it skips.
    """
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError:
            return None
    array = b"[%b]" % text
    variants = _variants_of(kind)
    found = variants.decode(array) if variants else None
    if found is not None:
        return found
    try:
        return list_decoder(kind).decode(array)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def decode_loosely(text: bytes, kind: type[EventT]) -> EventT:
    """One event from strict JSON; fields of the wrong type are None instead of an error."""
    try:
        return list_decoder(kind).decode(b"[%b]" % text)[0]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        import json

        return _loose_struct(json.loads(text, parse_int=_whole_number), kind)


@cache
def _fields(kind: type) -> tuple[msgspec.structs.FieldInfo, ...]:
    # msgspec compiles every annotation anew, each time.
    return msgspec.structs.fields(kind)


def _whole_number(text: str) -> int | float:
    # Python refuses to make a number of thousands of digits, and no field can hold it.
    return int(text) if len(text) < 100 else float(text)


def _loose_struct(values: dict[str, Any], kind: type[EventT]) -> EventT:
    from megatron.torch_trace.format.json_text import text_of

    chosen: dict[str, Any] = {}
    for spec in _fields(kind):
        value = values.get(spec.encode_name)
        if value is None:
            continue
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if spec.type is msgspec.Raw:
            chosen[spec.name] = msgspec.Raw(text_of(value).encode())
            continue
        if spec.name == "args":
            args_kind = Args if kind is Event else SlimArgs
            if isinstance(value, dict):
                chosen["args"] = _loose_struct(value, args_kind)
            continue
        try:
            chosen[spec.name] = msgspec.convert(value, spec.type, strict=False)
        except msgspec.ValidationError:
            if spec.type is str or spec.type == (str | None):
                chosen[spec.name] = str(value)
    return kind(**chosen)
