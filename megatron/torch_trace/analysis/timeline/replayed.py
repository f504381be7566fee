# SPDX-License-Identifier: Apache-2.0
"""Which GPU work a CUDA graph launched."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from megatron.torch_trace.analysis.timeline.activity import NONE
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.format.categories import launches_graph


def replayed_rows(timeline: Timeline) -> npt.NDArray[np.bool_]:
    """Rows of `Activity.gpu` that a graph launched."""
    activity, calls = timeline.activity, timeline.launches.call
    of_graph = activity.named(activity.calls, launches_graph)
    replayed: npt.NDArray[np.bool_] = calls != NONE
    replayed[replayed] = of_graph[calls[replayed]]
    return replayed
