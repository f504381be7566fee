# SPDX-License-Identifier: Apache-2.0
"""The hang records in the folder of a run: those of its last hang, one a rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.files.path_kinds import is_file, is_folder
from megatron.torch_trace.flight_recorder.record import FlightRecord
from megatron.torch_trace.flight_recorder.record_file import read_record
from megatron.torch_trace.format.hang_records import (
    FLIGHT_SUFFIX,
    HANG_SUFFIX,
    HANGS,
    LOCKED_SUFFIX,
    HangName,
    HangRecord,
    locked_rank,
    locked_record,
)

_CLOCKS_SECONDS = 30.0
"""How far apart the clocks of hosts, and the last iterations of ranks, may be."""
_ITERATIONS_APART = 1
"""Stages of a pipeline may hang in two iterations."""


@dataclass(frozen=True, slots=True)
class LastHang:
    """What ranks have left of the last hang of a run.

    Args:
        records: by rank.
        flights: torch's flight records of the same hang.
        skipped: files that are no hang records, or of earlier hangs, with the reason.
        damaged: hang records that are not whole.
    """

    records: dict[int, HangRecord]
    flights: tuple[FlightRecord, ...]
    skipped: tuple[tuple[Path, str], ...]
    damaged: tuple[Path, ...]

    @property
    def world_size(self) -> int:
        return max(one.world_size for one in self.records.values())

    @property
    def absent(self) -> tuple[int, ...]:
        """Ranks that have left no record."""
        hidden = {name.rank for path in self.damaged if (name := HangName.parse(path.name))}
        return tuple(r for r in range(self.world_size) if r not in self.records and r not in hidden)


def hang_files(paths: Sequence[Path | str]) -> list[Path]:
    """The hang records that a run, its folder of them, or their own names stand for.

    Nothing where these paths name something else.
    """
    named = [Path(path) for path in paths]
    if all(path.name.endswith(HANG_SUFFIX) and is_file(path) for path in named):
        return named
    if len(named) == 1:
        for folder in (named[0], named[0] / HANGS):
            if is_folder(folder) and (found := sorted(folder.glob(f"*{HANG_SUFFIX}"))):
                return found
    return []


def read_last_hang(files: Sequence[Path]) -> LastHang:
    """The records of the last hang.

    Raises:
        UsageError: no record is whole.
    """
    whole: list[tuple[Path, HangRecord]] = []
    skipped: list[tuple[Path, str]] = []
    damaged: list[Path] = []
    for path in files:
        try:
            whole.append((path, HangRecord.parse(path.read_bytes())))
        except (OSError, ValueError):
            damaged.append(path)
    if not whole:
        raise UsageError(f"{files[0].parent}: no hang record in it is whole.")
    newest = max((record for _, record in whole), key=lambda one: one.began_ns)
    chosen: dict[int, tuple[Path, HangRecord]] = {}
    for path, record in whole:
        # All ranks of one hang ended their last iteration at nearly the same time.
        apart = (record.seconds + _CLOCKS_SECONDS) * 1e9
        known = chosen.get(record.rank)
        if (
            newest.began_ns - record.began_ns > apart
            or newest.iteration - record.iteration > _ITERATIONS_APART
        ):
            skipped.append((path, "of an earlier hang"))
        elif known is None or known[1].began_ns < record.began_ns:
            if known is not None:
                skipped.append((known[0], "of an earlier hang"))
            chosen[record.rank] = (path, record)
        else:
            skipped.append((path, "of an earlier hang"))
    for path, record in _locked(files[0].parent, newest):
        chosen.setdefault(record.rank, (path, record))
    flights = []
    for path, _ in chosen.values():
        flight = path.with_name(path.name.removesuffix(HANG_SUFFIX) + FLIGHT_SUFFIX)
        if flight.is_file():
            try:
                flights.append(read_record(flight))
            except UsageError as error:
                skipped.append((flight, str(error).removeprefix(f"{flight}: ").rstrip(".")))
    return LastHang(
        {rank: record for rank, (_, record) in sorted(chosen.items())},
        tuple(flights),
        tuple(skipped),
        tuple(damaged),
    )


def _locked(folder: Path, newest: HangRecord) -> Iterator[tuple[Path, HangRecord]]:
    """Ranks that left no record of the last hang because a thread kept Python's lock."""
    for path in sorted(folder.glob(f"*{LOCKED_SUFFIX}")):
        rank = locked_rank(path.name)
        with suppress(OSError):
            written_ns = path.stat().st_mtime_ns
            if rank is None or written_ns < newest.began_ns - _CLOCKS_SECONDS * 1e9:
                continue
            record = locked_record(path.read_text(errors="replace"), rank, newest, written_ns)
            if record is not None:
                yield path, record
