# SPDX-License-Identifier: Apache-2.0
"""Events where only slices are wanted: of arrows, which are many, nothing is made."""

from __future__ import annotations

import operator
from functools import reduce
from typing import Any, ClassVar

import msgspec

from megatron.torch_trace.columns.arguments import SlimEventWithArgs
from megatron.torch_trace.format.tracks import Identity
from megatron.torch_trace.reader.event import Number

_OTHER_PHASES = "BEiICPMsftbneSTpFNODRcvV(,)="
"""Of the trace event format. A block with another one is decoded as `EventOrSlice` itself."""


class _ByPhase(msgspec.Struct, tag_field="ph", gc=False):
    pass


class Slice(_ByPhase, tag="X", gc=False):
    """A slice whose arguments are still text, as `SlimEventWithArgs` has it."""

    ph: ClassVar[str] = "X"
    cat: str = ""
    name: str = ""
    pid: Identity = None
    tid: Identity = None
    ts: Number = None
    dur: Number = None
    args: msgspec.Raw = msgspec.Raw()


def _no_slice(phase: str) -> type[msgspec.Struct]:
    return msgspec.defstruct(f"_Phase{ord(phase)}", [], bases=(_ByPhase,), tag=phase, gc=False)


class EventOrSlice(SlimEventWithArgs, gc=False):
    """What blocks are decoded as: each event as a `Slice` or as nothing; of an odd block as this.

    Attributes:
        variants: see `reader.event.decode_strictly`.
    """

    variants: ClassVar[Any] = reduce(operator.or_, map(_no_slice, _OTHER_PHASES), Slice)


def are_slices(events: list[Any]) -> bool:
    """Whether a block's events are slices, and others of which nothing was made."""
    return bool(events) and isinstance(events[0], _ByPhase)
