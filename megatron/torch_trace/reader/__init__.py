# SPDX-License-Identifier: Apache-2.0
"""From the bytes of a trace file to blocks of typed events, in constant memory.

bytestream   plain, gzip, zstd                 -> bytes
cutter       header, blocks, tail              -> text of whole events
event        the fast road: msgspec            -> typed events
salvage      the slow road, for damaged blocks -> typed events, and an account of the damage
block        one block of events, by either road
cores        how many processes
workers      blocks in several processes
trace        all of it: `Trace`
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from megatron.torch_trace.reader.block import EventBlock
    from megatron.torch_trace.reader.bytestream import ByteStream
    from megatron.torch_trace.reader.cutter import NotATraceError
    from megatron.torch_trace.reader.damage import Damage
    from megatron.torch_trace.reader.event import Args, Event, SlimArgs, SlimEvent
    from megatron.torch_trace.reader.metadata import Metadata
    from megatron.torch_trace.reader.trace import Trace
    from megatron.torch_trace.system.cores import available_cores

__all__ = [
    "Args",
    "ByteStream",
    "Damage",
    "Event",
    "EventBlock",
    "Metadata",
    "NotATraceError",
    "SlimArgs",
    "SlimEvent",
    "Trace",
    "available_cores",
]

_MODULES = {
    "EventBlock": "block",
    "ByteStream": "bytestream",
    "available_cores": "megatron.torch_trace.system.cores",
    "NotATraceError": "cutter",
    "Damage": "damage",
    "Args": "event",
    "Event": "event",
    "SlimArgs": "event",
    "SlimEvent": "event",
    "Metadata": "metadata",
    "Trace": "trace",
}


def __getattr__(name: str) -> Any:
    # Unpacking needs none of the parsing, and would take longer to start than to work.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULES[name]
    value = getattr(import_module(module if "." in module else f"{__name__}.{module}"), name)
    globals()[name] = value
    return value
