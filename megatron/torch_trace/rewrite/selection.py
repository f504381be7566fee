# SPDX-License-Identifier: Apache-2.0
"""What `slim` keeps: the request, checked, and the decision on one slice.

All times are integer nanoseconds and all ranges half-open.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.format.categories import ANNOTATIONS, GPU_WORK, LAUNCHES, is_known
from megatron.torch_trace.wording import duration

DROPS = {
    "python": "Python frames (half of a trace with stacks)",
    "flows": "arrows",
    "args": "arguments, except those that link and classify events",
    "shapes": "shapes, strides, types and concrete inputs of operators",
    "memory": "allocator events",
    "cpu": "operators on the CPU",
    "runtime": "runtime and driver calls",
    "overhead": "the profiler's own overhead and spans",
}
"""What `--drop` can name."""

PRESETS = {
    "overlap": "GPU work, launches, annotations and collectives, all that overlap needs",
    "perfetto": "everything, on tracks that Perfetto v51-v56 shows whole",
}

_DROPPED_CATEGORIES = {
    "python": {"python_function"},
    "memory": {"cpu_instant_event"},
    "cpu": {"cpu_op"},
    "runtime": set(LAUNCHES),
    "overhead": {"overhead", "Trace"},
}
WRITTEN_DURATION = "dur before clipping"
"""Argument with the duration that was written, of a slice that overran the next one."""

_SHAPE_ARGS = frozenset({"Input Dims", "Input Strides", "Input type", "Concrete Inputs"})
_LINKING_ARGS = frozenset(
    {
        "correlation",
        "stream",
        "device",
        "External id",
        "bytes",
        "Collective name",
        "In msg nelems",
        "Out msg nelems",
        "Group size",
        "dtype",
        "Process Group Name",
        "Process Group Description",
        "Process Group Ranks",
        "Seq",
        "Src Rank",
        "Dst Rank",
        "Sequence number",
        "Fwd thread id",
        WRITTEN_DURATION,
    }
)
SHORTEST_NAME = 24
"""Of a name that is cut: ten characters of its beginning beside what keeps it distinct."""

_UNITS_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


@dataclass(frozen=True, slots=True)
class Selection:
    """What to keep.

    Args:
        steps: numbers of `ProfilerStep#`; GPU work belongs to the step that launched it.
        start_ns, end_ns: from the first event of the trace; by the clock, for everything.
        categories: present names, see `vocabulary`; None keeps all.
        named: those of them that the user named, not a preset; some must be in the trace.
        min_dur_ns: slices shorter than this go, annotations stay.
        streams: GPU streams to keep; None keeps all.
        ranks: of a merged file, ranks to keep; None keeps all.
        drop: names from `DROPS`.
        separate_tracks: put annotations and crossing slices on tracks of their own, and cut GPU
            work that overruns the next one implausibly.
        max_name: cut longer names to so many characters, keeping them distinct; 0 for none.
    """

    steps: frozenset[int] | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    categories: frozenset[str] | None = None
    named: frozenset[str] = frozenset()
    min_dur_ns: int = 0
    streams: frozenset[int] | None = None
    ranks: frozenset[int] | None = None
    drop: frozenset[str] = field(default_factory=frozenset)
    separate_tracks: bool = False
    max_name: int = 0

    def __post_init__(self) -> None:
        unknown = self.drop - set(DROPS)
        if unknown:
            raise UsageError(
                f"--drop {','.join(sorted(unknown))}: unknown; choose from {', '.join(DROPS)}."
            )
        if 0 < self.max_name < SHORTEST_NAME:
            raise UsageError(f"--max-name {self.max_name}: must be at least {SHORTEST_NAME}.")
        if self.start_ns is not None and self.end_ns is not None and self.start_ns >= self.end_ns:
            start, end = duration(self.start_ns), duration(self.end_ns)
            raise UsageError(f"--from {start}: must be before --to {end}.")

    def with_preset(self, name: str) -> Selection:
        """The selection with a preset of `PRESETS` added."""
        if name == "perfetto":
            return replace(self, separate_tracks=True)
        if name == "overlap":
            wanted = GPU_WORK | LAUNCHES | ANNOTATIONS | {"ac2g"}
            return replace(self, categories=(self.categories or frozenset()) | wanted)
        raise UsageError(f"--preset {name}: unknown; choose from {', '.join(PRESETS)}.")

    @property
    def keeps_everything(self) -> bool:
        """Nothing is left out; the text may still have to be repaired or moved."""
        return replace(self, separate_tracks=False) == Selection()

    @property
    def has_range(self) -> bool:
        return self.start_ns is not None or self.end_ns is not None

    def keeps_category(self, name: str) -> bool:
        """Whether slices and instants of a category are wanted at all."""
        if any(name in _DROPPED_CATEGORIES.get(drop, ()) for drop in self.drop):
            return False
        return self.categories is None or name in self.categories

    def keeps_flow(self, name: str) -> bool:
        """Whether arrows of a category are wanted: both kinds of slice they join must be there."""
        if "flows" in self.drop:
            return False
        if name == "ac2g":
            return any(map(self.keeps_category, LAUNCHES)) and any(
                map(self.keeps_category, GPU_WORK)
            )
        if name == "fwdbwd":
            return self.keeps_category("cpu_op")
        return self.categories is None or name in self.categories

    def named_streams(self, record: object) -> frozenset[int]:
        """Streams that must be there: not those that an earlier pass has kept all there was of."""
        done = record.get("streams") if isinstance(record, dict) else None
        return (self.streams or frozenset()) - frozenset(done if isinstance(done, list) else ())

    @property
    def rewrites_args(self) -> bool:
        return bool(self.drop & {"args", "shapes"})

    def slim_args(self, args: bytes) -> bytes:
        """Arguments without what `--drop args` and `--drop shapes` name; digits stay."""
        entries = msgspec.json.decode(args, type=dict[str, msgspec.Raw])
        if "args" in self.drop:
            kept = {key: value for key, value in entries.items() if key in _LINKING_ARGS}
        else:
            kept = {key: value for key, value in entries.items() if key not in _SHAPE_ARGS}
        return join_object({key: bytes(value) for key, value in kept.items()})

    def record(self) -> dict[str, Any]:
        """What was left out, for the metadata of the file that is written."""
        record: dict[str, Any] = {}
        for key in ("steps", "categories", "streams", "ranks", "drop"):
            value = getattr(self, key)
            if value:
                record[key] = sorted(value)
        for key in ("start_ns", "end_ns", "min_dur_ns", "max_name"):
            value = getattr(self, key)
            if value:
                record[key] = value
        if self.separate_tracks:
            record["separate_tracks"] = True
        return record

    def without_done(self, record: dict[str, Any]) -> Selection:
        """What is left to do on a file from which `record` says what has been left out already.

        Kernels of a step are known by their launches; where a first pass dropped the launches, a
        second pass with the same steps must not fall back on the clock.
        """
        done = record.get("steps")
        covered = isinstance(done, list) and self.steps is not None and set(done) <= self.steps
        selection = replace(self, steps=None) if covered else self
        if self.has_range and (self.start_ns, self.end_ns) == (
            record.get("start_ns"),
            record.get("end_ns"),
        ):
            # Times count from the first event, which is another one now.
            selection = replace(selection, start_ns=None, end_ns=None)
        return selection


def absent_categories(
    named: frozenset[str], there: Collection[str], path: Path | str
) -> tuple[str, ...]:
    """Those that the trace lacks.

    Raises:
        UsageError: it has none of them, so that nothing would be left, or one looks like a slip.
    """
    absent = tuple(sorted(named - set(there)))
    misspelt = [name for name in absent if not is_known(name)]
    if misspelt or (absent and len(absent) == len(named)):
        has = ", ".join(sorted(name for name in there if name)) or "none"
        wrong = ",".join(misspelt or absent)
        raise UsageError(f"--category {wrong}: not in {path}, which has {has}.")
    return absent


def refuse_absent_streams(named: frozenset[int], there: Collection[int], path: Path | str) -> None:
    """A stream that the trace lacks is a slip: all GPU work would be left out.

    Raises:
        UsageError: there is one.
    """
    absent = sorted(named - set(there))
    if absent:
        has = ", ".join(map(str, sorted(there))) or "none"
        raise UsageError(f"--stream {absent[0]}: not in {path}, which has streams {has}.")


def join_object(entries: dict[str, bytes]) -> bytes:
    """An object from keys and JSON texts."""
    return b"{%b}" % b", ".join([_key(key) + value for key, value in entries.items()])


@lru_cache(maxsize=4096)
def _key(key: str) -> bytes:
    return json.dumps(key).encode() + b": "


def parse_duration(text: str, flag: str) -> int:
    """`"5us"`, `"1.5ms"`, `"2s"`, `"300ns"` or plain microseconds -> nanoseconds."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ns|us|ms|s)?\s*", text)
    if not match:
        raise UsageError(f"{flag} {text}: not a time; write 300ns, 5us, 1.5ms or 2s.")
    from decimal import Decimal

    return int(Decimal(match[1]) * _UNITS_NS[match[2] or "us"])


def parse_numbers(text: str, flag: str) -> frozenset[int]:
    """`"3"`, `"3,5"`, `"3-5,8"` -> the numbers."""
    numbers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", part)
        if not match or (match[2] and int(match[2]) < int(match[1])):
            raise UsageError(f"{flag} {text}: not a list of numbers; write 3, 3,5 or 3-5.")
        numbers.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(numbers)
