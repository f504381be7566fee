# SPDX-License-Identifier: Apache-2.0
"""Finding and reading flight records, of all versions of torch from 2.2 on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.files.json_object import read_object
from megatron.torch_trace.files.path_kinds import absence, is_file, is_folder
from megatron.torch_trace.flight_recorder.batches import Recorded, in_batches, since
from megatron.torch_trace.flight_recorder.record import COMPLETED, Call, FlightRecord, Group
from megatron.torch_trace.format.file_names import RUN_FILE
from megatron.torch_trace.format.hang_records import HangName
from megatron.torch_trace.format.json_text import value_of
from megatron.torch_trace.pickles.pickle_bytes import NotPlainError
from megatron.torch_trace.pickles.plain_pickle import PlainPickle
from megatron.torch_trace.reader.bytestream import ByteStream

_RANK = re.compile(r"(\d+)(?:\.(?:pickle|pkl|json|bin))?(?:\.(?:gz|zst))?$")
"""torch writes `comm_lib_trace_rank_7`; launchers choose other prefixes, the rank comes last."""
_PEER = re.compile(r"(send|recv) (\d+)(?:->|<-)(\d+)")
_HEAD = {"version", "pg_config", "pg_status"}
_LONGEST = 1 << 30
_Skipped = list[tuple[Path, str]]


def read_records(paths: Iterable[Path | str]) -> tuple[list[FlightRecord], _Skipped]:
    """Records by rank, and files that are none with the reason.

    Args:
        paths: files, or folders in which all files are looked at.

    Raises:
        UsageError: a path is not there, a file named by itself is no record, a rank has two, or
            there is none at all.
    """
    found: list[FlightRecord] = []
    skipped: _Skipped = []
    for path in map(Path, paths):
        if is_file(path):
            found.append(read_record(path))
        elif is_folder(path):
            for one in sorted(path.rglob("*")):
                if one.is_file():
                    try:
                        found.append(read_record(one))
                    except UsageError as error:
                        skipped.append((one, str(error).removeprefix(f"{one}: ").rstrip(".")))
        else:
            raise UsageError(f"{path}: {absence(path)}.")
    runs = [path for path in map(Path, paths) if is_file(path / RUN_FILE)]
    if not found and runs:
        raise UsageError(
            f"{', '.join(map(str, paths))}: no rank of this run has left a hang record; "
            f"{_why_none(runs[0])}."
        )
    if not found:
        named = [(path.name, why) for path, why in skipped if _rank_of(path.name) is not None]
        tried = "such as comm_lib_trace_rank_0"
        if named:
            tried = f"{named[0][0]}: {named[0][1].removeprefix('no flight record: ')}"
        raise UsageError(
            f"{', '.join(map(str, paths))}: no flight record ({tried}); set "
            "TORCH_FR_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1 in the launch script."
        )
    found.sort(key=lambda one: one.rank)
    for record, following in pairwise(found):
        if record.rank == following.rank:
            raise UsageError(
                f"{record.path} and {following.path} are both of rank {record.rank}; name the "
                "records of one hang."
            )
    return found, skipped


def _why_none(run: Path) -> str:
    """Why a run holds no hang record."""
    arguments = None
    with suppress(OSError, ValueError):
        arguments = read_object(run / RUN_FILE).get("arguments")
    limit = arguments.get("torch_profile_on_hang") if isinstance(arguments, dict) else None
    if not isinstance(limit, (int, float)):
        return "start the training with --torch-profile-on-hang SECONDS"
    return f"none of its iterations took {limit:g} s, or its ranks were killed before that"


def read_record(path: Path) -> FlightRecord:
    """One record.

    Raises:
        UsageError: the file is none.
    """
    rank = _rank_of(path.name)
    if rank is None:
        raise UsageError(
            f"{path}: no flight record: its name does not end in the number of a rank, as "
            "comm_lib_trace_rank_0 does."
        )
    data, damaged = _content(path)
    if isinstance(data, dict) and (data.keys() >= _HEAD or (damaged and data.keys() & _HEAD)):
        # torch leaves the key out of JSON where it has no entry to write.
        data.setdefault("entries", ())
    if not isinstance(data, dict) or not isinstance(data.get("entries"), (list, tuple)):
        raise UsageError(f"{path}: no flight record: it has no entries.")
    return record_of(data, path, rank, damaged=damaged)


def record_of(
    data: dict[str, Any], path: Path, rank: int, *, damaged: bool = False
) -> FlightRecord:
    """What torch has written, as a record.

    Args:
        data: with `entries`, a list.
        path: the file.
        rank: global rank.
        damaged: bytes are missing.
    """
    groups = {one.name: one for one in _groups(data.get("pg_config"))}
    calls, numbers = [], {}
    entries = list(data["entries"])
    if damaged and entries and (len(entries) == 1 or _lacks(entries[-1], entries[0])):
        entries.pop()  # of which the file holds only the beginning
    for number, entry in enumerate(entries):
        try:
            call = _call(entry, number, groups)
            calls.append(Recorded(call, *_sequences(entry)))
            if "pg_id" in entry:
                numbers[int(entry["pg_id"])] = call.group
        except (AttributeError, TypeError, ValueError, OverflowError):
            damaged = True
    calls.sort(key=lambda one: one.call.order)
    return FlightRecord(
        path,
        rank,
        groups,
        tuple(in_batches(calls)),
        str(data.get("version", "")),
        damaged,
        whole=bool(calls) and calls[0].call.order == 0 == since(calls),
        since=since(calls),
        numbers=numbers,
        last_called=dict(_last_called(data.get("pg_status"))),
    )


def _lacks(entry: Any, other: Any) -> bool:
    return not isinstance(entry, dict) or (isinstance(other, dict) and other.keys() > entry.keys())


def _last_called(status: Any) -> Iterable[tuple[int, int]]:
    """By torch's number of a group, the number of the last collective; text in JSON."""
    for number, one in status.items() if isinstance(status, dict) else ():
        with suppress(AttributeError, KeyError, TypeError, ValueError):
            yield int(number), int(one["last_enqueued_collective"])


def _rank_of(name: str) -> int | None:
    ours = HangName.parse(name)
    match = _RANK.search(name)
    return ours.rank if ours else int(match[1]) if match else None


def _content(path: Path) -> tuple[Any, bool]:
    """What a file holds, and whether it is cut short."""
    pieces = iter(ByteStream(path))
    first = next(pieces, b"")
    if first.startswith(b"\x80"):
        try:
            pickle = PlainPickle([first, *pieces], lambda into, items: False)
            return pickle.value(), pickle.cut_short
        except NotPlainError as error:
            raise UsageError(f"{path}: {error}.") from None
    if first.lstrip()[:1] != b"{":
        raise UsageError(f"{path}: neither a pickle nor JSON.")
    try:
        return value_of(b"".join([first, *pieces])[:_LONGEST]), False
    except ValueError:
        raise UsageError(f"{path}: JSON that is not whole.") from None


def _groups(config: Any) -> Iterable[Group]:
    # A dictionary by name since version 2.1, of lists of ranks before.
    for name, one in config.items() if isinstance(config, dict) else ():
        if isinstance(one, dict):
            yield Group(str(name), _description(one.get("desc", "")), _ranks(one.get("ranks")))
        else:
            yield Group(str(name), "", _ranks(one))


def _description(value: Any) -> str:
    """Empty where nobody gave one: torch calls all such groups the same."""
    return "" if value == "undefined" else str(value)


def _ranks(value: Any) -> tuple[int, ...]:
    """`[0, 1, 2]` as text or as a list; empty where it is cut with `...`."""
    if isinstance(value, str):
        return () if "..." in value else tuple(int(one) for one in re.findall(r"\d+", value))
    if isinstance(value, (list, tuple)) and all(isinstance(one, int) for one in value):
        return tuple(value)
    return ()


def _call(entry: Any, number: int, groups: dict[str, Group]) -> Call:
    name = str(entry.get("profiling_name", "")).partition(":")[2] or str(
        entry.get("profiling_name")
    )
    group = _group(entry, groups)
    transfer = _PEER.search(name)
    collective, transfers = _sequences(entry)
    return Call(
        order=int(entry.get("record_id", number)),
        group=group.name,
        sequence=transfers if transfer and transfers is not None else collective,
        name=name,
        sizes=_sizes(entry),
        state=_state(entry),
        created=int(entry.get("time_created_ns") or 0),
        thread=str(entry.get("thread_name", "")),
        is_transfer=transfer is not None,
        peer=_peer(transfer, group) if transfer else None,
        stack=tuple(_frames(entry.get("frames"))),
        finished=int(entry.get("time_discovered_completed_ns") or 0) or None,
    )


def _sequences(entry: dict[str, Any]) -> tuple[int, int | None]:
    """Of collectives and of transfers; before torch 2.4 one number for both."""
    if entry.get("collective_seq_id") is None and entry.get("p2p_seq_id") is None:
        return int(entry.get("seq_id", 0)), None
    collective, transfers = (entry.get(f"{kind}_seq_id") for kind in ("collective", "p2p"))
    both = int(entry.get("seq_id", 0))
    return (
        both if collective is None else int(collective),
        both if transfers is None else int(transfers),
    )


def _state(entry: Any) -> str:
    """Of a call. torch lets go of one of gloo when it is complete, and may not write its state
    any more; one of NCCL that torch has let go of can also have run out of time."""
    of_gloo = str(entry.get("profiling_name", "")).startswith("gloo:")
    return COMPLETED if of_gloo and entry.get("retired") is True else str(entry.get("state", ""))


def _group(entry: dict[str, Any], groups: dict[str, Group]) -> Group:
    """The group of a call; added where the record's list of groups lacks it."""
    known = entry.get("process_group")
    if isinstance(known, (list, tuple)) and len(known) == 2:
        name, description = str(known[0]), _description(known[1])
    else:
        name, description = str(entry.get("pg_name", entry.get("pg_id", ""))), ""
    old = groups.get(name)
    if old is None or (description and not old.description):
        groups[name] = Group(name, description, old.ranks if old else ())
    return groups[name]


def _peer(transfer: re.Match[str], group: Group) -> int | None:
    index = int(transfer[3])
    if not group.ranks:
        return None
    return group.ranks[index] if index < len(group.ranks) else None


def _sizes(entry: dict[str, Any]) -> str:
    sizes, types, results = (
        _plain(_only(entry.get(key) or ()))
        for key in ("input_sizes", "input_dtypes", "output_sizes")
    )
    told = " ".join(part for part in (sizes, types) if part != "[]")
    return told if results in ("[]", sizes) else f"{told} -> {results}".strip()


def _only(value: Any) -> Any:
    """What is in a list of one."""
    return value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value


def _plain(value: Any) -> str:
    """Lists and tuples alike: equal shapes are equal text."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_plain, value))}]"
    return str(value)


def _frames(frames: Any) -> Iterable[str]:
    for one in frames if isinstance(frames, (list, tuple)) else ():
        if isinstance(one, dict):
            yield f"{one.get('filename', '?')}:{one.get('line', 0)} {one.get('name', '')}"
