# SPDX-License-Identifier: Apache-2.0
"""When a CUDA graph was being captured: what is launched then runs when the graph is launched."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megatron.torch_trace.format.integer_arrays import Ints, distinct


@dataclass(frozen=True, slots=True)
class Captures:
    """Captures of graphs, which may overlap: begins and ends, each ascending, ns."""

    begins: Ints
    ends: Ints

    @classmethod
    def of(cls, begins: tuple[Ints, Ints], ends: tuple[Ints, Ints]) -> Captures:
        """From the calls that begin and that end a capture, in any order: (times, threads).

        A capture that ends on a thread on which none had begun, began before the trace.
        """
        time = np.concatenate((begins[0], ends[0]))
        thread = np.concatenate((begins[1], ends[1]))
        change = np.concatenate((np.ones(len(begins[0])), -np.ones(len(ends[0]))))
        order = np.lexsort((change, time, thread))
        time, thread, change = time[order], thread[order], change[order]
        before = []
        for one in distinct(thread).tolist():
            open_at_start = -int(np.cumsum(change[thread == one]).min())
            before += [np.iinfo(np.int64).min] * max(0, open_at_start)
        earlier = np.array(before, dtype=np.int64)
        return cls(np.sort(np.concatenate((earlier, begins[0]))), np.sort(ends[0]))

    def __len__(self) -> int:
        return len(self.begins)

    def hold(self, times: Ints) -> npt.NDArray[np.bool_]:
        """Which of these times lie within a capture, on whichever thread."""
        begun = np.searchsorted(self.begins, times, side="right")
        inside: npt.NDArray[np.bool_] = begun > np.searchsorted(self.ends, times, side="right")
        return inside
