# SPDX-License-Identifier: Apache-2.0
"""From the bytes of a trace file to blocks of typed events, in constant memory.

bytestream   plain, gzip, zstd                 -> bytes
cutter       header, blocks, tail              -> text of whole events
event        the fast road: msgspec            -> typed events
salvage      the slow road, for damaged blocks -> typed events, and an account of the damage
block        one block of events, by either road
workers      blocks in several processes
trace        all of it: `Trace`
"""

from megatron.torch_trace.reader.block import EventBlock
from megatron.torch_trace.reader.bytestream import ByteStream
from megatron.torch_trace.reader.cutter import NotATraceError
from megatron.torch_trace.reader.damage import Damage
from megatron.torch_trace.reader.event import Args, Event, SlimArgs, SlimEvent
from megatron.torch_trace.reader.metadata import Metadata
from megatron.torch_trace.reader.trace import Trace
from megatron.torch_trace.reader.workers import available_cores

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
