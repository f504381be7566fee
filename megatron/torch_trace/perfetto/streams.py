# SPDX-License-Identifier: Apache-2.0
"""What mostly runs on a stream, in a word or two, and how deep its GPU's queue is."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from megatron.torch_trace.analysis.communication.collectives import CollectiveCalls, CollectiveKind
from megatron.torch_trace.analysis.communication.dimensions import UNKNOWN, order_of
from megatron.torch_trace.analysis.timeline.activity import NONE
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.columns.intervals import Ints
from megatron.torch_trace.format.tracks import Track

_POINT_TO_POINT = frozenset({"send", "recv", "send_recv"})
_COPY_ORDER = 100
_MUCH = 0.25
_MOST_WORDS = 3


class StreamLabel(NamedTuple):
    """What mostly runs on a stream; `order` is its index among the streams."""

    text: str
    order: int


_COMPUTE = StreamLabel("compute", 0)
_COPY = StreamLabel("copy", _COPY_ORDER)


def label_streams(timeline: Timeline, calls: CollectiveCalls) -> dict[Track, StreamLabel]:
    """Track -> what takes most of the time on it, and what else takes much."""
    gpu = timeline.activity.gpu
    found = [_COMPUTE, _COPY, _communication(None), *map(_communication, calls.kinds)]
    code = np.where(timeline.is_communication, 2, np.where(timeline.is_memory, 1, 0))
    code[calls.rows] = calls.kind + 3
    time: dict[int, dict[StreamLabel, int]] = defaultdict(lambda: defaultdict(int))
    pieces: dict[int, dict[StreamLabel, int]] = defaultdict(lambda: defaultdict(int))
    pairs, inverse, counts = np.unique(
        np.stack([gpu.track, code]), axis=1, return_inverse=True, return_counts=True
    )
    spent = np.bincount(inverse.ravel(), weights=gpu.end - gpu.start, minlength=pairs.shape[1])
    for (track, one), ns, count in zip(
        pairs.T.tolist(), spent.tolist(), counts.tolist(), strict=True
    ):
        time[track][found[one]] += int(ns)
        pieces[track][found[one]] += count
    tracks = timeline.activity.tracks
    return {tracks[track]: _label(labels, pieces[track]) for track, labels in time.items()}


def _label(time: dict[StreamLabel, int], pieces: dict[StreamLabel, int]) -> StreamLabel:
    most = max(time, key=lambda one: (time[one], one.text))
    much = [one for one in time if time[one] >= _MUCH * sum(time.values())]
    # Waiting in a collective takes longer on one rank than on another: compute always comes first,
    # and a stream that mostly computes by number is called so however long the waiting was.
    if 2 * pieces.get(_COMPUTE, 0) > sum(pieces.values()):
        much.append(_COMPUTE)
    shown = sorted({most, *much}, key=lambda one: (one.order, one.text))[:_MOST_WORDS]
    return StreamLabel(" + ".join(one.text for one in shown), shown[0].order)


def _communication(kind: CollectiveKind | None) -> StreamLabel:
    dimension = kind.dimension if kind else UNKNOWN
    words = {UNKNOWN: "communication", "default": "all ranks"}.get(dimension, dimension)
    if kind and kind.collective in _POINT_TO_POINT:
        words += " p2p"
    return StreamLabel(words, 1 + order_of(dimension))


def queue_depth(timeline: Timeline) -> tuple[Ints, Ints]:
    """(start of each kernel, copy or memset whose launch is known, work that then still waited).

    0 is a GPU that waits for the CPU.
    """
    known = timeline.launches.time != NONE
    start = timeline.activity.gpu.start[known]
    launched = np.sort(timeline.launches.time[known])
    waiting = np.searchsorted(launched, start, side="right") - np.arange(1, len(start) + 1)
    return start, np.maximum(waiting, 0)
