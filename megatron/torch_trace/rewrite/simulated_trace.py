# SPDX-License-Identifier: Apache-2.0
"""A simulated iteration as traces: what was recorded, when it would happen.

Names, categories, arguments and arrows stay; `ts` and `dur` change. Calls that wait for the GPU no
more are left out. What was simulated stands in the file's metadata, so that nobody takes it for a
recording.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from megatron.torch_trace.analysis.replay.simulated_times import SimulatedTimes, TrackKey
from megatron.torch_trace.columns.block_times import block_times
from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.files.sources import ranked
from megatron.torch_trace.files.writer import OutputFile, TraceWriter
from megatron.torch_trace.format.categories import LAUNCHES
from megatron.torch_trace.format.json_text import text_of
from megatron.torch_trace.format.times import NO_TIME, text_of_ns
from megatron.torch_trace.format.tracks import Identity
from megatron.torch_trace.reader import EventBlock, Trace
from megatron.torch_trace.reader.event import SlimEvent, TrackEvent
from megatron.torch_trace.reader.metadata import OWN_KEY
from megatron.torch_trace.rewrite.event_fields import replaced
from megatron.torch_trace.rewrite.merge.merge import merge

_TRACE_NAMES = (".json", ".json.gz", ".json.zst")
_ARROW = "ac2g"
_OF_CALLS = LAUNCHES | {_ARROW, "cuda_sync"}


class _LinkedEvent(SlimEvent, gc=False):
    """An event with what links it to a call."""

    id: Identity = None


def refuse_existing(output: Path) -> None:
    """Before any work.

    Raises:
        UsageError: there is something that would be overwritten, or no folder to write into.
    """
    if output.exists() and (_is_trace(output) or not output.is_dir() or any(output.iterdir())):
        raise UsageError(f"--save {output}: exists already; name a new file or folder.")
    if not output.absolute().parent.is_dir():
        raise UsageError(f"--save {output}: there is no folder {output.parent}; create it first.")
    if not _is_trace(output) and output.suffix in (".gz", ".zst", ".pftrace", ".pb"):
        raise UsageError(
            f"--save {output}: is no name of a trace; a file ends in .json, .json.gz or .json.zst, "
            "and a folder takes a trace for each rank."
        )


def write(ranks: Sequence[SimulatedTimes], output: Path, changes: Sequence[str]) -> list[Path]:
    """Write the simulated traces; the files.

    Args:
        ranks: when everything happens.
        output: a folder for a trace of each rank, named as the recorded ones; or a file, which
            holds the rank, or all ranks merged. It must not be there.
        changes: as a user writes them.

    Raises:
        UsageError: the output exists, or cannot be written.
    """
    refuse_existing(output)
    if _is_trace(output):
        if len(ranks) == 1:
            _write_rank(ranks[0], output, changes)
        else:
            _write_merged(ranks, output, changes)
        return [output]
    made = not output.exists()
    output.mkdir(exist_ok=True)
    files: list[Path] = []
    try:
        for one in ranks:
            file = output / one.path.name
            _write_rank(one, file, changes)
            files.append(file)
    except BaseException:
        for file in files:
            file.unlink(missing_ok=True)
        if made:
            with suppress(OSError):
                output.rmdir()
        raise
    return files


def _is_trace(output: Path) -> bool:
    return output.name.endswith(_TRACE_NAMES)


def _write_merged(ranks: Sequence[SimulatedTimes], output: Path, changes: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory(prefix=".simulated-", dir=output.absolute().parent) as folder:
        files = []
        for one in ranks:
            files.append(Path(folder) / f"rank-{one.rank}.json.zst")
            _write_rank(one, files[-1], changes)
        record = {"simulated": {"changes": list(changes)}}
        merge(ranked(files, [one.rank for one in ranks]), output, record=record)


def _write_rank(rank: SimulatedTimes, output: Path, changes: Sequence[str]) -> None:
    trace = Trace(rank.path)
    record = {"changes": list(changes), "recorded": rank.path.name}
    with OutputFile(output) as sink:
        writer = TraceWriter(sink)
        writer.begin(_entries(trace, record))
        if rank.gone:
            for linked in trace.blocks(_LinkedEvent):
                writer.add(_moved(linked, rank, _left_out(linked, rank.gone)))
        else:
            for block in trace.blocks(TrackEvent):
                writer.add(_moved(block, rank))
        writer.end(_entries(trace, record))


def _entries(trace: Trace, record: Mapping[str, object]) -> dict[str, bytes]:
    own = dict(trace.metadata.own) | {"simulated": record}
    return trace.metadata.entries | {OWN_KEY: text_of(own).encode()}


def _left_out(block: EventBlock[_LinkedEvent], gone: Set[int]) -> set[int]:
    """Numbers of the events of calls that are gone: these, their arrows, what they waited for."""
    found = set()
    for number, event in enumerate(block.events):
        if event.cat in _OF_CALLS:
            own = None if event.args is None else event.args.correlation
            if (event.id if event.cat == _ARROW else own) in gone:
                found.add(number)
    return found


def _moved(
    block: EventBlock[Any], rank: SimulatedTimes, left_out: Set[int] = frozenset()
) -> list[bytes]:
    starts, durations = block_times(block)
    lengths = np.where(durations == NO_TIME, 0, durations)
    tracks: dict[TrackKey, list[int]] = {}
    for number, event in enumerate(block.events):
        if starts[number] != NO_TIME and event.ph != "M":
            tracks.setdefault((event.pid, event.tid), []).append(number)
    begins, ends = starts.copy(), starts + lengths
    for track, numbers in tracks.items():
        begins[numbers], ends[numbers] = rank.of(track).moved(starts[numbers], ends[numbers])
    timed = {number for numbers in tracks.values() for number in numbers}
    found = []
    for number in range(len(block.events)):
        if number in left_out:
            continue
        text = block.event_texts[number]
        if number not in timed:
            found.append(b"{%b}" % text)
            continue
        values = {"ts": text_of_ns(int(begins[number])).encode()}
        if durations[number] != NO_TIME:
            values["dur"] = text_of_ns(int(ends[number] - begins[number])).encode()
        found.append(b"{%b}" % replaced(text, values))
    return found
