# SPDX-License-Identifier: Apache-2.0
"""Everything in a trace beside its events: whose it is, where and how it was recorded."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from megatron.torch_trace.format.json_text import value_of
from megatron.torch_trace.format.other_formats import Maker
from megatron.torch_trace.format.rank_ranges import MOST_RANKS
from megatron.torch_trace.reader.damage import Damage
from megatron.torch_trace.reader.landmarks import Allowance, first_from
from megatron.torch_trace.reader.lenient import LenientParser, NotJsonError

OWN_KEY = "torch_profile"
"""Top-level key under which this project's capture and `merge` leave what they know."""

FLAGS = ("record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules")

_TOP_LEVEL = re.compile(
    r'"(?:schemaVersion|deviceProperties|distributedInfo|trace_id|traceName|displayTimeUnit'
    r"|baseTimeNanoseconds|traceEvents|torch_profile|record_shapes|profile_memory|with_stack"
    r"|with_flops|with_modules|INFO|WARNING|ERROR|VERBOSE"
    r'|(?:cuda|cupti|nccl|hip|roctracer|pytorch|torch)\w*version)"\s*:'
)

_BEFORE_ENTRY = re.compile(r'[\s,{]*(?=")')
_NO_ENTRY = re.compile(r"[ \t\r\n,{}]*\Z")


def parse_members(text: bytes, offset: int, damage: Damage) -> dict[str, bytes]:
    """The top-level entries of `text`: key -> value as strict JSON, the last one of a kind wins.

    Args:
        text: `"key": value, "key": value`, with or without the braces around it.
        offset: of its first byte in the file, for `damage`.
    """
    inner = text.strip(b"\xef\xbb\xbf \t\r\n,").removeprefix(b"{").strip(b" \t\r\n,")
    try:
        inner.decode()
        entries = msgspec.json.decode(b"{%b}" % inner, type=dict[str, msgspec.Raw])
        return {key: bytes(value) for key, value in entries.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _parse_leniently(text, offset, damage)


def _parse_leniently(text: bytes, offset: int, damage: Damage) -> dict[str, bytes]:
    decoded = text.decode("utf-8", "replace")
    if "�" in decoded and b"\xef\xbf\xbd" not in text:
        damage.add("not_utf8", offset)
    parser = LenientParser(decoded)
    known = [match.start() for match in _TOP_LEVEL.finditer(decoded)]
    allowance = Allowance(len(decoded))
    found: dict[str, bytes] = {}
    at = _next_entry(decoded, 0, known)
    while at >= 0:
        following = first_from(known, at + 1)
        # Once much was read in vain, no entry reaches over what looks like the next one.
        parser.end = len(decoded) if allowance or following < 0 else following
        try:
            key, value, end = parser.member(at)
        except (NotJsonError, RecursionError):
            damage.add("lost_metadata", offset + at)
            allowance.spend(parser.end - at)
            at = following
            continue
        found[json.loads(key)] = value.encode()
        at = _next_entry(decoded, end, known)
    for kind, times in parser.faults.items():
        damage.add(kind, offset, times)
    return found


def _next_entry(text: str, at: int, known: list[int]) -> int:
    """Where the next entry begins: at the next quote, else at a key that is known, else -1."""
    match = _BEFORE_ENTRY.match(text, at)
    if match:
        return match.end()
    return -1 if _NO_ENTRY.match(text, at) else first_from(known, at)


@dataclass
class Metadata:
    """Top-level entries of a trace.

    Args:
        entries: key -> value as JSON text, in the order of the file, without traceEvents.
        maker: who else than torch.profiler wrote the events; None if nobody.
    """

    entries: dict[str, bytes] = field(default_factory=dict)
    maker: Maker | None = None

    def get(self, key: str) -> Any:
        """The decoded value of a key, or None. A value that is JSON inside a string is unpacked."""
        text = self.entries.get(key)
        if text is None:
            return None
        value = _loads(text)
        if isinstance(value, str) and value[:1] in ("{", "["):
            inner = _loads(value)
            return value if inner is None else inner
        return value

    def _dict(self, key: str) -> dict[str, Any]:
        value = self.get(key)
        return value if isinstance(value, dict) else {}

    @property
    def distributed_info(self) -> dict[str, Any]:
        """`distributedInfo`, wherever it stood; {} if there is none."""
        return self._dict("distributedInfo")

    @property
    def own(self) -> dict[str, Any]:
        """What this project's capture wrote (rank, coordinates, window, host, ...); {} if none."""
        return self._dict(OWN_KEY)

    @property
    def merged(self) -> dict[str, Any] | None:
        """How `torch-trace merge` made this file, or None for the trace of one rank."""
        merged = self.own.get("merged")
        return merged if isinstance(merged, dict) else None

    @property
    def rank(self) -> int | None:
        """Global rank as the file itself tells it."""
        if self.merged is not None:
            return None
        rank = _integer(self.distributed_info.get("rank", self.own.get("rank")))
        return rank if _is_index(rank) else None

    @property
    def world_size(self) -> int | None:
        """Ranks of the job; None if the file does not tell, or tells what no job has."""
        size = _integer(self.distributed_info.get("world_size", self.own.get("world_size")))
        return size if size is not None and 0 < size <= MOST_RANKS else None

    @property
    def base_time_ns(self) -> int:
        """Nanoseconds since the epoch to which `ts` is relative; 0 if `ts` is absolute."""
        return _integer(self.get("baseTimeNanoseconds")) or 0

    @property
    def process_groups(self) -> list[dict[str, Any]]:
        """Each `{"pg_name", "pg_desc", "pg_size", "ranks": [int]}`, as far as they are there."""
        groups = self.distributed_info.get("pg_config")
        if isinstance(groups, str):
            try:
                groups = value_of(groups)
            except ValueError:
                groups = None
        if not isinstance(groups, list):
            return []
        return [
            {**group, "ranks": _rank_list(group.get("ranks"))}
            for group in groups
            if isinstance(group, dict)
        ]

    @property
    def devices(self) -> list[dict[str, Any]]:
        """`deviceProperties`: every GPU that the process could see."""
        devices = self.get("deviceProperties")
        return [d for d in devices if isinstance(d, dict)] if isinstance(devices, list) else []

    @property
    def flags(self) -> list[str]:
        """Which of torch.profiler's options were on."""
        return [flag for flag in FLAGS if self.get(flag)]

    @cached_property
    def coordinates(self) -> dict[str, int]:
        """Index of the rank in each parallel dimension, from capture or from the groups' ranks."""
        own = self.own.get("coordinates")
        if isinstance(own, dict):
            return {str(k): v for k, v in own.items() if _is_index(v)}
        rank = self.rank
        found: dict[str, int] = {}
        for dimension, descriptions in _DIMENSIONS.items():
            for group in self.process_groups:
                ranks = group["ranks"]
                if group.get("pg_desc") in descriptions and rank in ranks:
                    found[dimension] = ranks.index(rank)
                    break
        if self.process_groups and {"tp", "pp", "dp"} & set(found):
            # Megatron makes a group for each of them, so a missing one has a single member.
            for dimension in ("tp", "pp", "dp"):
                found.setdefault(dimension, 0)
        return {d: found[d] for d in _DIMENSIONS if d in found}


def _loads(text: bytes | str) -> Any:
    """The value; None if no Python value can hold it: nested too deep, a number too long."""
    try:
        return value_of(text)
    except ValueError:
        return None


_DIMENSIONS = {
    "tp": ("TENSOR_MODEL_PARALLEL_GROUP",),
    "pp": ("PIPELINE_MODEL_PARALLEL_GROUP",),
    "dp": ("DATA_PARALLEL_GROUP",),
    "cp": ("CONTEXT_PARALLEL_GROUP",),
    "ep": ("EXPERT_MODEL_PARALLEL_GROUP",),
}


_LARGEST = 1 << 62
"""Nothing in a trace is counted so far, and times that are added to it must fit into 64 bits."""


def _integer(value: Any) -> int | None:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if -_LARGEST < number < _LARGEST else None


def _is_index(value: Any) -> bool:
    """Whether a job has so many ranks, and at least one more."""
    return isinstance(value, int) and 0 <= value < MOST_RANKS


def _rank_list(value: Any) -> list[int]:
    """Ranks of a group: a list, or a list written as text; cut lists give what they show."""
    if isinstance(value, str):
        value = re.findall(r"\d+", value)
    if not isinstance(value, list):
        return []
    return [rank for rank in map(_integer, value) if rank is not None]
