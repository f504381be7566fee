# SPDX-License-Identifier: Apache-2.0
"""Where a rank is and how much memory its GPU has, from what lies beside its snapshot.

20261127-221810/run.json                            coordinates, Megatron's arguments
20261127-221810/iter-0000005/rank-0.pt.trace.json   the GPU's memory, and coordinates too
20261127-221810/iter-0000005/artifacts/rank-0.memory_snapshot.pickle
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megatron.torch_trace.allocator.answer import MemoryAnswer
from megatron.torch_trace.allocator.cuda_memory.failures import live_bytes_beside
from megatron.torch_trace.allocator.ranks.shape import Shape, arguments_of, shape_of
from megatron.torch_trace.analysis.timeline.command_line import loop_in
from megatron.torch_trace.errors import TorchTraceError
from megatron.torch_trace.files.json_object import read_object
from megatron.torch_trace.files.sources import rank_in_name, read_metadata
from megatron.torch_trace.format.file_names import RUN_FILE, TraceName
from megatron.torch_trace.reader import Metadata

_FOLDERS = 3
"""From `artifacts/` to the run's folder."""


@dataclass(frozen=True, slots=True)
class RankFacts:
    """What is known of a rank besides its memory.

    Args:
        coordinates: in the parallel dimensions, as far as known.
        capacity: bytes that its GPU has for programs; None if nothing tells them.
        arguments: Megatron's; empty if no run.json tells them.
        layout: sizes of the parallel dimensions, from run.json.
        argv: the command line, where a trace beside the snapshot has it.
        folder: of the run; else the one that the snapshot lies in.
        outside: bytes of the GPU that were not torch's, as an out-of-memory error saw them; None
            if none did.
        loop: the training loop's name, as capture wrote it; None where nothing tells.
    """

    coordinates: Mapping[str, int] = field(default_factory=dict)
    capacity: int | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    layout: Mapping[str, int] = field(default_factory=dict)
    argv: tuple[str, ...] = ()
    folder: str = ""
    outside: int | None = None
    loop: str | None = None

    @property
    def stage(self) -> int | None:
        """Of the pipeline; None if it is unknown."""
        return self.coordinates.get("pp")

    @property
    def shape(self) -> Shape | None:
        """Of its part of the model; None where not even the micro-batch is known."""
        return shape_of(self.arguments or arguments_of(self.argv), self.layout, self.stage)

    @property
    def words(self) -> str:
        """`tp0 pp1`; empty if it is unknown."""
        return " ".join(f"{name}{index}" for name, index in self.coordinates.items())


def facts_of(answer: MemoryAnswer) -> RankFacts:
    """Where the rank of an answer is."""
    run, folder = _run(answer.path)
    metadata = _trace_metadata(answer)
    coordinates = _of_the_run(run, answer.rank) or (metadata.coordinates if metadata else {})
    arguments, layout = run.get("arguments"), run.get("layout")
    argv = metadata.own.get("argv") if metadata else None
    seen = live_bytes_beside(answer.path)
    return RankFacts(
        coordinates,
        _capacity(metadata, answer.device) or _positive(seen.get("total_bytes")),
        arguments if isinstance(arguments, dict) else {},
        _whole(layout),
        tuple(map(str, argv)) if isinstance(argv, list) else (),
        str(folder),
        _positive(seen.get("outside_bytes")),
        loop_in(run) or (loop_in(metadata.own) if metadata else None),
    )


def _run(path: Path) -> tuple[dict[str, Any], Path]:
    for folder in list(path.absolute().parents)[:_FOLDERS]:
        with suppress(OSError, ValueError):
            return read_object(folder / RUN_FILE), folder
    return {}, path.absolute().parent


def _positive(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None


def _of_the_run(run: Mapping[str, Any], rank: int | None) -> Mapping[str, int]:
    members = run.get("ranks")
    for one in members if isinstance(members, list) else ():
        if isinstance(one, dict) and one.get("rank") == rank and rank is not None:
            return _whole(one.get("coordinates"))
    return {}


def _whole(found: Any) -> dict[str, int]:
    pairs = found.items() if isinstance(found, dict) else ()
    return {str(name): value for name, value in pairs if type(value) is int}


def _trace_metadata(answer: MemoryAnswer) -> Metadata | None:
    for path in _traces(answer):
        with suppress(TorchTraceError, OSError):
            return read_metadata(path)
    return None


def _traces(answer: MemoryAnswer) -> Iterator[Path]:
    """The rank's trace: the answer's own file, or one beside it or above it."""
    if answer.fragmentation is None:
        yield answer.path
        return
    folder = answer.path.absolute().parent
    for one in (folder, folder.parent):
        with suppress(OSError):
            for path in sorted(one.iterdir()):
                if TraceName.parse(path.name) and rank_in_name(path.name) == answer.rank:
                    yield path


def _capacity(metadata: Metadata | None, device: int) -> int | None:
    for one in metadata.devices if metadata else ():
        if one.get("id") == device:
            return _positive(one.get("totalGlobalMem"))
    return None
