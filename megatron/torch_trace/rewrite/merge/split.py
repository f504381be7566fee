# SPDX-License-Identifier: Apache-2.0
"""The inverse of `merge`: a file for each rank, as it was."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from megatron.torch_trace.files.writer import OutputFile, TraceWriter
from megatron.torch_trace.format.file_names import TraceName
from megatron.torch_trace.format.times import ns_of_text, text_of_ns
from megatron.torch_trace.reader import SlimEvent, Trace
from megatron.torch_trace.reader.event import Identity
from megatron.torch_trace.rewrite.merge.block_merge import LINKING_IDS
from megatron.torch_trace.rewrite.merge.merge import merged_ranks
from megatron.torch_trace.rewrite.merge.rank_numbers import own_id, own_number
from megatron.torch_trace.rewrite.selection import join_object


class _Rank:
    """What is known of one rank of a merged file, ready for use."""

    def __init__(self, entry: dict[str, Any], count: int) -> None:
        self.count = count
        self.shift: int = entry["shift_ns"]
        self.processes: dict[Identity, Identity] = dict(entry["processes"])
        self.tracks = {
            (pid, tid): (old_pid, old_tid) for pid, tid, old_pid, old_tid in entry["tracks"]
        }
        self.unnamed = [text.encode() for text in entry["unnamed"]]
        self.entries = {key: text.encode() for key, text in entry["entries"].items()}

    def restore(self, event: SlimEvent, text: bytes) -> bytes | None:
        """The event as it was in the rank's own file; None if `merge` added it."""
        track = (event.pid, event.tid)
        own = self.tracks.get(track)
        if event.ph == "M" and (own or event.name.startswith("process_")):
            return None
        entries = _entries(text)
        pid, tid = own or (self.processes[event.pid], event.tid)
        if pid is None:
            entries.pop("pid")
        else:
            entries["pid"] = json.dumps(pid).encode()
        if "tid" in entries:
            entries["tid"] = json.dumps(tid).encode()
        if event.id is not None:
            entries["id"] = json.dumps(own_id(event.id, self.count)[0]).encode()
        if self.shift and "ts" in entries:
            ns = ns_of_text(entries["ts"].decode())
            if ns is not None:
                entries["ts"] = text_of_ns(ns - self.shift).encode()
        if "args" in entries and any(key.encode() in entries["args"] for key in LINKING_IDS):
            entries["args"] = self._restore_args(entries["args"])
        return join_object(entries)

    def _restore_args(self, text: bytes) -> bytes:
        entries = _entries(text)
        for key in LINKING_IDS:
            value = entries.get(key)
            if value is not None and value.isdigit():
                entries[key] = b"%d" % own_number(int(value), self.count)[0]
        return join_object(entries)


def split(path: Path | str, folder: Path | str, *, force: bool = False) -> dict[int, Path]:
    """Write each rank of a merged file into `folder`; returns rank -> file.

    Events and metadata are what they were before `merge`, though in another layout.

    Args:
        path: what `merge` has written.
        folder: which is there; each file is named after its rank.
        force: replace existing files.

    Raises:
        TorchTraceError: the file is not merged, or the disk is full.
        UsageError: there is no such folder, or a file of that name exists.
    """
    trace = Trace(path)
    found = merged_ranks(trace.read_header().own, path)
    ranks = {entry["rank"]: _Rank(entry, len(found)) for entry in found}
    owner = {pid: rank for rank, one in ranks.items() for pid in one.processes}
    paths = {rank: Path(folder) / str(TraceName(rank, max(ranks) + 1, "none")) for rank in ranks}
    with ExitStack() as stack:
        writers: dict[int, TraceWriter] = {}
        for rank, one in ranks.items():
            sink = stack.enter_context(OutputFile(paths[rank], force=force))
            writers[rank] = TraceWriter(sink)
            writers[rank].begin(one.entries)
        for block in trace.blocks(SlimEvent):
            for event, text in zip(block.events, block.texts, strict=True):
                rank = owner[event.pid]
                restored = ranks[rank].restore(event, text)
                if restored is not None:
                    writers[rank].add([restored])
        for rank, one in ranks.items():
            writers[rank].add(one.unnamed)
            writers[rank].end(one.entries)
    return paths


def _entries(text: bytes) -> dict[str, bytes]:
    raw = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    return {key: bytes(value) for key, value in raw.items()}
