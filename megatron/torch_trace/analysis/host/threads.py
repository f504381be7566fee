# SPDX-License-Identifier: Apache-2.0
"""Which threads launch GPU work for the training loop: its own, autograd's, and the rest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megatron.torch_trace.analysis.host.data_loader import is_loader
from megatron.torch_trace.analysis.timeline.activity import NONE
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.columns.intervals import Ints

_AUTOGRAD = "autograd::engine::evaluate_function"


@dataclass(frozen=True, slots=True)
class Threads:
    """Tracks that do the same job.

    Args:
        tracks: which of the codes of tracks are of it.
        family: these, and the ones that hold each other up: the training loop and autograd, for
            the loop waits while autograd's threads run the backward pass.
        frames: tracks on which to look for what ran: where autograd's threads have no Python of
            their own, the loop is in `run_backward`.
    """

    tracks: npt.NDArray[np.bool_]
    family: npt.NDArray[np.bool_]
    frames: npt.NDArray[np.bool_]

    def holds(self, track: Ints, *, with_family: bool = False) -> npt.NDArray[np.bool_]:
        """Which of these codes are of the group, or of its family; NONE is of none."""
        found: npt.NDArray[np.bool_] = (self.family if with_family else self.tracks)[track]
        return found


def loop_track(timeline: Timeline) -> int:
    """The track of the training loop: with the steps, else with the loader, else with launches.

    NONE for a trace that has none of these.
    """
    activity, window = timeline.activity, timeline.window
    if window.track != NONE:
        return window.track
    loading = activity.ops.track[activity.named(activity.ops, is_loader)]
    tracks = loading if len(loading) else timeline.launches.track
    own = tracks[(tracks != NONE) & ~_autograd(timeline)[tracks]]
    return int(np.bincount(own).argmax()) if len(own) else NONE


def threads_of(timeline: Timeline) -> tuple[Threads, ...]:
    """The loop's thread, autograd's threads, all others: every track is in exactly one of them."""
    activity = timeline.activity
    main, count = loop_track(timeline), len(activity.tracks)
    # One more at the end, where NONE looks.
    loop = np.zeros(count + 1, dtype=bool)
    if main != NONE:
        loop[:count] = [one == activity.tracks[main] for one in activity.tracks]
    autograd = _autograd(timeline) & ~loop
    others = ~(loop | autograd)
    training, others[count] = loop | autograd, False
    own_python = autograd[activity.frames.track].any()
    return (
        Threads(loop, training, loop),
        Threads(autograd, training, autograd if own_python else loop),
        Threads(others, others, others),
    )


def _autograd(timeline: Timeline) -> npt.NDArray[np.bool_]:
    """Which tracks run the backward pass, one more than there are: where NONE looks."""
    ops = timeline.activity.ops
    found = np.zeros(len(timeline.activity.tracks) + 1, dtype=bool)
    found[ops.track[timeline.activity.named(ops, lambda name: name.startswith(_AUTOGRAD))]] = True
    return found
