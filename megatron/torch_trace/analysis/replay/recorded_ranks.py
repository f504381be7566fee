# SPDX-License-Identifier: Apache-2.0
"""Which ranks are replayed, and their traces read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from megatron.torch_trace.analysis.timeline.activity import read_activity
from megatron.torch_trace.analysis.timeline.steps import MergedTraceError
from megatron.torch_trace.analysis.timeline.timeline import Timeline, timeline_of
from megatron.torch_trace.errors import TorchTraceError, UsageError
from megatron.torch_trace.files.same_rank import same_rank
from megatron.torch_trace.files.selection import listed, one_window
from megatron.torch_trace.files.sources import find_traces, rank_in_name, rank_of
from megatron.torch_trace.system.cores import available_cores
from megatron.torch_trace.wording import path_text

MOST_RANKS = 16
"""More traces are not read whole at one time; graphs of spans are for those."""


def chosen(traces: Sequence[Path], wanted: Iterable[int] = ()) -> list[Path]:
    """At most 16 of the traces: of the ranks wanted, then the first ones.

    Neighbours are in one tensor-parallel group, and so are those of a whole block of them: blocks
    of ranks that follow each other let more collectives be whole than single ranks do.
    """
    if len(traces) <= MOST_RANKS:
        return list(traces)
    asked = set(wanted)
    first = [one for one in traces if rank_in_name(one.name) in asked][:MOST_RANKS]
    for one in traces:
        if len(first) >= MOST_RANKS:
            break
        if one not in first:
            first.append(one)
    return sorted(first, key=traces.index)


def read_ranks(
    paths: Iterable[Path | str],
    *,
    wanted: Iterable[int] = (),
    progress: Callable[[Path], None] | None = None,
) -> dict[int, Timeline]:
    """Timelines of ranks, by rank.

    Args:
        paths: traces, or folders of them, of one window.
        wanted: ranks that must be among them.
        progress: called with each trace once it is read.

    Raises:
        UsageError: there is nothing that can be replayed, or two traces are of one rank.
    """
    sources = find_traces(paths)
    found: dict[int, Timeline] = {}
    reasons = [(reason, file) for file, reason in sources.skipped]
    for path in chosen(one_window(sources.traces), wanted):
        try:
            timeline = _read(path)
        except MergedTraceError:
            raise
        except TorchTraceError as error:
            reasons.append((str(error).removeprefix(f"{path_text(path)}: "), path))
            continue
        if progress:
            progress(path)
        if isinstance(timeline, str):
            reasons.append((timeline, path))
            continue
        rank = rank_of(timeline.activity.metadata, path)
        if rank is None:
            rank = next(n for n in range(len(found) + 1) if n not in found)
        if rank in found:
            raise same_rank(rank, path, found[rank].activity.path, sources.traces)
        found[rank] = timeline
    if not found:
        raise UsageError(nothing_can_be_replayed(reasons))
    return found


def nothing_can_be_replayed(reasons: Sequence[tuple[str, Path]]) -> str:
    """The sentence about traces, each with its reason; a reason of several is said once."""
    files: dict[str, list[str]] = {}
    for reason, path in reasons:
        files.setdefault(reason.removesuffix("."), []).append(path_text(path))
    said = [f"{listed(paths, most=3)}: {reason}" for reason, paths in files.items()]
    return f"nothing can be replayed: {listed(said or ['no trace'], '; ', most=3)}."


def _read(path: Path) -> Timeline | str:
    """The timeline, or why it cannot be replayed."""
    activity = read_activity(path, workers=available_cores())
    if activity.metadata.merged is not None:
        raise MergedTraceError(activity.path)
    return replayable(timeline_of(activity))


def replayable(timeline: Timeline | None) -> Timeline | str:
    """The timeline, or why it cannot be replayed."""
    if timeline is None or not len(timeline.activity.gpu):
        return "no GPU work; record on a GPU, with --torch-profile-activities cpu cuda"
    if timeline.clock_offset is not None:
        return "GPU and CPU are on different clocks, so no launch can be placed"
    if not (timeline.launches.call >= 0).any():
        return (
            "nothing tells which call launched which work; a replay needs the runtime's calls "
            "(cuda_runtime) with their correlation"
        )
    if not timeline.window.steps:
        return "no ProfilerStep, so nothing tells where an iteration begins"
    return timeline
