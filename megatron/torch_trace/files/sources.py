# SPDX-License-Identifier: Apache-2.0
"""From what a user names on the command line to trace files and their ranks."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.files.path_kinds import absence, is_file, is_folder
from megatron.torch_trace.files.same_rank import same_rank
from megatron.torch_trace.format.file_names import (
    ARTIFACTS,
    ENDED_FILE,
    METRICS_FILE,
    OUT_OF_MEMORY,
    RUN_FILE,
    TraceName,
    is_kept_analysis,
)
from megatron.torch_trace.format.hang_records import HANGS
from megatron.torch_trace.format.rank_ranges import MOST_RANKS
from megatron.torch_trace.format.requests import REQUESTS
from megatron.torch_trace.format.suffixes import TEMPORARY_SUFFIX
from megatron.torch_trace.reader import ByteStream, Metadata, NotATraceError, SlimEvent, Trace
from megatron.torch_trace.reader.block import EventBlock
from megatron.torch_trace.reader.cutter import Cutter
from megatron.torch_trace.reader.damage import Damage
from megatron.torch_trace.reader.metadata import parse_members
from megatron.torch_trace.reader.tail import split
from megatron.torch_trace.wording import counted

_MOST_SKIPPED = 10
_OF_THE_RUN = (RUN_FILE, ENDED_FILE, METRICS_FILE)
_FOLDERS_OF_THE_RUN = (REQUESTS, HANGS, OUT_OF_MEMORY)
_RANKS_IN_NAME = tuple(
    re.compile(rf"(?:^|[^a-z]){word}(\d+)(?!\d)", re.IGNORECASE)
    for word in (
        r"global[-_]?rank[-_. =\[]?",
        r"(?<!local[-_. ])(?<!node[-_. ])rank[-_. =\[]?",
        # `worker-3_4711.1694128201545.pt.trace.json` is process 4711 of the host worker-3.
        r"(?!worker[-_. ]?\d+_\d+\.\d{10,}\.)worker[-_. ]?",
        r"r(?=\d+[-_.])",
    )
)
"""How names tell a rank; the first kind that is there counts."""
_COORDINATE = re.compile(r"(?:^|[^a-z])(tp|pp|dp|cp|ep)[-_]?(\d+)(?!\d)", re.IGNORECASE)


@dataclass(slots=True)
class Sources:
    """Traces found, and what lay beside them.

    Attributes:
        traces: files, by folder, then rank in the name, then name.
        skipped: files that are no traces, with the reason.
    """

    traces: list[Path] = field(default_factory=list)
    skipped: list[tuple[Path, str]] = field(default_factory=list)


def find_traces(
    paths: Iterable[Path | str], known: Callable[[Path], bool] = lambda _: False
) -> Sources:
    """The traces that `paths` name: files, folders of a window, folders of a run.

    A file named by itself is taken at its word; in a folder, strangers are skipped with a reason.

    Args:
        paths: files and folders.
        known: which files need not be opened to know that they are traces.

    Raises:
        UsageError: a path does not exist, or a folder holds no trace.
    """
    sources = Sources()
    for path in map(Path, paths):
        if str(path) == "-" or is_file(path):
            sources.traces.append(path)
        elif is_folder(path):
            _search(path, sources, known)
        else:
            raise UsageError(f"{path}: {absence(path)}.")
    return sources


def skipped_lines(skipped: Sequence[tuple[Path, str]]) -> list[str]:
    """A sentence for each of the first files that are no traces, and how many more there are."""
    lines = [f"Skipped {path}: {reason}." for path, reason in skipped[:_MOST_SKIPPED]]
    more = len(skipped) - len(lines)
    return [*lines, f"Skipped {counted(more, 'more file', 'more files')}."] if more else lines


def files_below(folder: Path, *, artifacts: bool = False) -> Iterator[Path]:
    """Files in a folder and below, in no order; what a folder lists is asked of no file again.

    On a shared file system each question costs, and there are as many files as ranks.

    Args:
        folder: to look into; what may not be looked into is passed over.
        artifacts: also those in folders of artifacts.
    """
    with suppress(PermissionError, FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if artifacts or entry.name != ARTIFACTS:
                    yield from files_below(folder / entry.name, artifacts=artifacts)
            elif _is_regular(entry):
                yield folder / entry.name


def _is_regular(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        return False


def _search(folder: Path, sources: Sources, known: Callable[[Path], bool]) -> None:
    found = []
    below = sorted(files_below(folder), key=by_folder_and_rank)
    runs = {path.parent for path in below if path.name == RUN_FILE}
    for path in below:
        beside = path.parent.name in _FOLDERS_OF_THE_RUN and path.parent.parent in runs
        if beside or path.name in _OF_THE_RUN:
            continue
        reason = None if known(path) else stranger(path)
        if reason:
            sources.skipped.append((path, reason))
        else:
            found.append(path)
    if not found and any(map(is_kept_analysis, files_below(folder, artifacts=True))):
        raise UsageError(
            f"{folder}: holds no trace, but kept analyses, which have no single events."
        )
    if not found:
        raise UsageError(
            f"{folder}: holds no trace (every file in this folder and below was looked at)."
        )
    there = {*found}
    for path in found:
        packed = {path.with_name(path.name + suffix) for suffix in (".gz", ".zst")} & there
        if packed:
            sources.skipped.append(
                (path, f"unpacked text of {min(packed).name}, which is in the same folder")
            )
        else:
            sources.traces.append(path)


def stranger(path: Path) -> str | None:
    """Why a file is no trace, from its first 64 KiB; None if it is one."""
    if path.name.endswith(TEMPORARY_SUFFIX):
        return "unfinished: it is still being written, or its writer was killed"
    try:
        Cutter(ByteStream(path)).start()
    except NotATraceError as error:
        return error.reason
    except UsageError as error:
        return str(error)
    return None


def by_folder_and_rank(path: Path) -> tuple[str, int, str]:
    """What traces are sorted by: folder, then rank in the name, then name."""
    rank = rank_in_name(path.name)
    return (str(path.parent), -1 if rank is None else rank, path.name)


def rank_in_name(name: str) -> int | None:
    """The rank that a file's name tells: `rank-7`, `_rank_7`, `worker7`, `r7-`, `-TP-7`.

    None where it tells none: the number in `host_4711.pt.trace.json` is a process, and of two
    parallel dimensions nobody knows the sizes. No job has a rank of more than seven digits.
    """
    rank = _number_in_name(name)
    return rank if rank is not None and rank < MOST_RANKS else None


def _number_in_name(name: str) -> int | None:
    ours = TraceName.parse(name)
    if ours:
        return ours.rank
    for kind in _RANKS_IN_NAME:
        match = kind.search(name)
        if match:
            return int(match[1][:20])
    coordinates = {dimension.lower(): int(at[:20]) for dimension, at in _COORDINATE.findall(name)}
    moved = [dimension for dimension, at in coordinates.items() if at]
    if "tp" in coordinates and moved in ([], ["tp"]):
        return coordinates["tp"]
    return None


def rank_of(metadata: Metadata, path: Path) -> int | None:
    """The rank of a trace: by its own word, else by its name; None if neither tells it."""
    if metadata.merged is not None:
        return None
    return rank_in_name(path.name) if metadata.rank is None else metadata.rank


def read_metadata(path: Path | str) -> Metadata:
    """All metadata of a trace, whether before or behind its events, without decoding the events."""
    cutter = Cutter(ByteStream(path))
    cutter.start()
    damage = Damage()
    metadata = Metadata(parse_members(cutter.header, 0, damage))
    last = None
    for last in cutter:
        if b'"traceEvents"' in last.text:
            # A second document begins here: its metadata are of another trace.
            return _read_whole(path)
    if last is None:
        return metadata
    block: EventBlock[SlimEvent] = EventBlock(last, SlimEvent)
    if block.end is None or not block.events:
        # The tail began in an earlier block, or is cut off: only a whole reading finds out.
        return _read_whole(path)
    members = split(last.text[block.end :], cutter.is_array).members
    if members.strip(b" \t\r\n,\0"):
        metadata.entries.update(parse_members(members, 0, damage))
    return metadata


def _read_whole(path: Path | str) -> Metadata:
    trace = Trace(path)
    for _ in trace.blocks(SlimEvent):
        pass
    return trace.metadata


@dataclass(frozen=True, slots=True)
class RankedTrace:
    """A trace whose rank is known."""

    rank: int
    path: Path
    metadata: Metadata


def ranked(paths: Sequence[Path], ranks: Sequence[int] | None = None) -> list[RankedTrace]:
    """Each trace with its rank: by the file's own word, else its name, else `ranks`, in order.

    Args:
        paths: traces of single ranks.
        ranks: what the user says, one for each path; overrules everything.

    Raises:
        UsageError: a rank is unknown or held by two files; a file is merged already.
    """
    if ranks is not None and len(ranks) != len(paths):
        raise UsageError(f"--ranks: {len(ranks)} ranks for {len(paths)} traces; give one for each.")
    found: dict[int, RankedTrace] = {}
    for number, path in enumerate(paths):
        metadata = read_metadata(path)
        if metadata.merged is not None:
            raise UsageError(f"{path}: holds several ranks already; name the files it was made of.")
        rank = ranks[number] if ranks is not None else rank_of(metadata, path)
        if rank is None:
            raise UsageError(
                f"{path}: neither the trace nor its file name has the rank; give it with --ranks."
            )
        if rank in found:
            raise same_rank(rank, path, found[rank].path, paths)
        found[rank] = RankedTrace(rank, path, metadata)
    return [found[rank] for rank in sorted(found)]
