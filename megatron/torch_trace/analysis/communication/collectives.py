# SPDX-License-Identifier: Apache-2.0
"""What each communication kernel did: dimension, group, collective, bytes, by all that is known.

In this order, the first that knows wins:

1. the kernel's own arguments (torch copies them there from the operator that launched it);
2. the `record_param_comms` operator that encloses the launch;
3. a `nccl:coalesced` range that encloses the launch: the send and recv operators that stand before
   it on the same thread, since the range before. So pipeline send/recv, which carry no arguments;
4. any other `nccl:` range that encloses the launch, then the kernel's name: the collective is
   known, the group is not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.analysis.communication.bandwidth import message_bytes
from megatron.torch_trace.analysis.communication.dimensions import IN_GRAPH, UNKNOWN, dimension_of
from megatron.torch_trace.analysis.timeline.activity import NONE, Activity, Collective
from megatron.torch_trace.analysis.timeline.code_columns import present, rows_with
from megatron.torch_trace.analysis.timeline.replayed import replayed_rows
from megatron.torch_trace.analysis.timeline.timeline import Timeline, nesting_of
from megatron.torch_trace.columns.intervals import Ints, ints
from megatron.torch_trace.format.communication_names import (
    collective_of,
    is_coalesced_range,
    is_range,
)

_CANONICAL = {
    "allreduce": "allreduce",
    "allgather": "allgather",
    "gather": "gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "scatter": "scatter",
    "send": "send",
    "recv": "recv",
    "barrier": "barrier",
}
_NOISE = ("_coalesced", "_base", "_into_tensor", "_tensor", "_single")
SYMMETRIC = frozenset({"allreduce", "allgather", "reduce_scatter", "all_to_all", "barrier"})
"""Collectives that all ranks leave together, so that the one with the shortest call came last."""

ONLY = "only"
"""Begins the key of a call whose group is unknown and whose ranks are not."""


@dataclass(frozen=True, slots=True)
class CollectiveKind:
    """What calls have in common: few in a trace, however many calls.

    Args:
        dimension: `tp`, `pp`, ..., `unknown`.
        group: the process group's description, `unknown` if the call is not attributed, IN_GRAPH if
            a CUDA graph launched it.
        key: identity of the group over ranks: name and members.
        collective: canonical name: `allreduce`, `send_recv`, `barrier`, ..., `unknown`.
        group_size: ranks in the group; None if unknown.
    """

    dimension: str
    group: str
    key: str
    collective: str
    group_size: int | None


@dataclass(frozen=True, slots=True)
class Message:
    """What one call moves.

    Args:
        bytes: nccl-tests' S; `NONE` if unknown.
        elements: its size, to tell calls apart when matching over ranks.
        seq: torch's sequence number of the call within the group; `NONE` if not recorded.
    """

    bytes: int = NONE
    elements: int = 0
    seq: int = NONE


@dataclass(frozen=True, slots=True)
class CollectiveCalls:
    """One row for each communication kernel on the GPU, by start.

    Args:
        rows: rows of `activity.gpu`.
        kind: codes into `kinds`.
        kinds: what the codes mean.
        bytes, elements, seq: see `Message`.
    """

    rows: Ints
    kind: Ints
    kinds: tuple[CollectiveKind, ...]
    bytes: Ints
    elements: Ints
    seq: Ints


def canonical(name: str) -> str:
    """`_allgather_base`, `allgather_into_tensor_coalesced` -> `allgather`."""
    folded = name.lower()
    for word in _NOISE:
        folded = folded.replace(word, "")
    # torch's `isend` and `irecv` are `send` and `recv`.
    folded = folded.replace("_", "").removeprefix("i")
    return _CANONICAL.get(folded, name.lower().strip("_") or UNKNOWN)


def attribute(timeline: Timeline) -> CollectiveCalls:
    """Attribute every communication kernel that runs in the window; none is dropped."""
    activity = timeline.activity
    rows = np.flatnonzero(timeline.is_communication & timeline.in_window)
    groups = Groups(activity)
    known: dict[tuple[CollectiveKind, Message], int] = {}
    own = activity.gpu.collective[rows]
    # One more at the end, where NONE looks.
    call_of = np.full(len(activity.collectives) + 1, NONE, dtype=np.int64)
    for code in present(own):
        one = groups.call(activity.collectives[code])
        call_of[code] = known.setdefault(one, len(known))
    call = call_of[own]
    lost = np.flatnonzero(call == NONE)
    if len(lost):
        for position, one in zip(
            lost.tolist(), _by_launch(timeline, rows[lost], groups), strict=True
        ):
            call[position] = known.setdefault(one, len(known))
    kinds = {kind: code for code, kind in enumerate(dict.fromkeys(kind for kind, _ in known))}
    return CollectiveCalls(
        rows=rows,
        kind=ints([kinds[kind] for kind, _ in known])[call],
        kinds=tuple(kinds),
        bytes=ints([message.bytes for _, message in known])[call],
        elements=ints([message.elements for _, message in known])[call],
        seq=ints([message.seq for _, message in known])[call],
    )


class Groups:
    """Process groups of the trace: identity over ranks, from the configuration if it is there."""

    def __init__(self, activity: Activity) -> None:
        self.members: dict[str, str] = {}
        self.descriptions: dict[str, str] = {}
        for group in activity.metadata.process_groups:
            name = str(group.get("pg_name"))
            # Kineto cuts the list in a kernel's arguments after 30 ranks; this one is whole.
            self.members[name] = str(group["ranks"])
            self.descriptions[name] = str(group.get("pg_desc") or "")

    def only(self, kernel: str) -> str:
        """The key of a kernel of an unknown group: with the ranks, where all groups of this rank
        have the same ones; else without."""
        members = {ranks for ranks in self.members.values() if "," in ranks}
        return f"{ONLY} {members.pop()} {kernel}" if len(members) == 1 else f"unknown {kernel}"

    def call(
        self, collective: Collective, name: str | None = None
    ) -> tuple[CollectiveKind, Message]:
        group = collective.group_name or ""
        description = collective.group_description or self.descriptions.get(group)
        members = self.members.get(group) or collective.group_ranks or ""
        operation = name or canonical(collective.name)
        size = message_bytes(collective, operation)
        kind = CollectiveKind(
            dimension=dimension_of(description),
            group=description or (f"group {group}" if group else UNKNOWN),
            key=f"{group} {description} {members}",
            collective=operation,
            group_size=collective.group_size,
        )
        message = Message(
            bytes=NONE if size is None else size,
            elements=max(collective.in_nelems or 0, collective.out_nelems or 0),
            seq=NONE if collective.seq is None else collective.seq,
        )
        return kind, message


def _by_launch(
    timeline: Timeline, rows: Ints, groups: Groups
) -> list[tuple[CollectiveKind, Message]]:
    activity, launches = timeline.activity, timeline.launches
    ops = activity.ops
    comms = ops.collective != NONE
    waits = [c for c, v in enumerate(activity.collectives) if canonical(v.name) == "wait"]
    comms &= ~rows_with(ops.collective, waits, len(activity.collectives))
    ranges = activity.named(ops, is_range)
    track, time = launches.track[rows], launches.time[rows]
    operator = nesting_of(ops, comms).innermost(track, time) if comms.any() else _none(rows)
    around = (
        nesting_of(ops, ranges & ops.annotation).innermost(track, time)
        if ranges.any()
        else _none(rows)
    )
    coalesced = Coalesced(activity, comms)
    replayed = replayed_rows(timeline)
    found = []
    for row, op, span in zip(rows.tolist(), operator.tolist(), around.tolist(), strict=True):
        kernel = activity.names[int(activity.gpu.name[row])]
        if op != NONE:
            found.append(groups.call(activity.collectives[int(ops.collective[op])]))
            continue
        name = activity.names[int(ops.name[span])] if span != NONE else ""
        if is_coalesced_range(name):
            members = coalesced.before(span)
            if members:
                found.append(_joined(members, groups))
                continue
        collective = collective_of(name) if name else "unknown"
        if collective == "unknown":
            collective = collective_of(kernel)
        kind = CollectiveKind(UNKNOWN, UNKNOWN, f"unknown {kernel}", collective, None)
        if replayed[row]:
            kind = CollectiveKind(UNKNOWN, IN_GRAPH, groups.only(kernel), collective, None)
        found.append((kind, Message()))
    return found


def _none(rows: Ints) -> Ints:
    return np.full(len(rows), NONE, dtype=np.int64)


class Coalesced:
    """The operators that a `nccl:coalesced` range runs: those since the range before it."""

    def __init__(self, activity: Activity, comms: np.ndarray) -> None:
        self.activity = activity
        ops = activity.ops
        ranges = activity.named(ops, is_coalesced_range)
        self.ranges = np.flatnonzero(ranges & ops.annotation)
        self.comms = np.flatnonzero(comms)

    def before(self, span: int) -> list[Collective]:
        ops, activity = self.activity.ops, self.activity
        track = ops.track[span]
        earlier = self.ranges[(self.ranges < span) & (ops.track[self.ranges] == track)]
        since = int(ops.end[earlier[-1]]) if len(earlier) else -(1 << 62)
        mine = self.comms[
            (ops.track[self.comms] == track)
            & (ops.start[self.comms] >= since)
            & (ops.start[self.comms] < ops.end[span])
        ]
        members = [activity.collectives[int(code)] for code in ops.collective[mine]]
        pairs = [m for m in members if canonical(m.name) in ("send", "recv")]
        return pairs or members[-1:]


def _joined(members: list[Collective], groups: Groups) -> tuple[CollectiveKind, Message]:
    """One kernel that does several sends and receives: named after both.

    What goes out and what comes in pass each other, so the larger of them is its size.
    """
    names = [canonical(member.name) for member in members]
    name = "send_recv" if {*names} == {"send", "recv"} else min(names)
    calls = [groups.call(member, own)[1] for member, own in zip(members, names, strict=True)]
    ways: dict[str, int] = {}
    for own, message in zip(names, calls, strict=True):
        ways[own] = ways.get(own, 0) + message.bytes
    unknown = any(message.bytes == NONE for message in calls)
    return groups.call(members[0], name)[0], Message(
        bytes=NONE if unknown else max(ways.values()),
        elements=sum(message.elements for message in calls),
    )


def starts_and_ends(timeline: Timeline, calls: CollectiveCalls) -> tuple[Ints, Ints]:
    """Start and end of each call, unclipped, in ns."""
    gpu = timeline.activity.gpu
    return ints(gpu.start[calls.rows]), ints(gpu.end[calls.rows])
