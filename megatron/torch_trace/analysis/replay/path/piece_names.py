# SPDX-License-Identifier: Apache-2.0
"""What the path ran through, in the user's words: phases and micro-batches, functions, collectives.

Of the CPU the innermost span of a phase on the training loop's thread, whichever thread worked; in
a trace without such spans the annotation around it, else which thread it was. With stacks, the
Python function in which most of the time was.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from megatron.torch_trace.analysis.communication.collectives import CollectiveCalls
from megatron.torch_trace.analysis.host.python_frames import function_name
from megatron.torch_trace.analysis.replay.kernels.rank_graph import RankGraph
from megatron.torch_trace.analysis.replay.kernels.thread_points import LAST
from megatron.torch_trace.analysis.timeline.activity import NONE, Rows
from megatron.torch_trace.analysis.timeline.kernel_names import family_of
from megatron.torch_trace.analysis.timeline.nesting import Nesting
from megatron.torch_trace.analysis.timeline.span_names import microbatch_span
from megatron.torch_trace.columns.activity_tables import MODULE_FRAME
from megatron.torch_trace.columns.intervals import Ints, ints
from megatron.torch_trace.format.communication_names import is_range
from megatron.torch_trace.format.step_names import step_number

TRAINING_LOOP = "training loop"
BACKWARD_PASS = "backward pass"
"""Of its thread and of others, where nothing tells more."""
_BUILT_IN = "<built-in"
_COMPILED = "## Call CompiledFxGraph"


class PieceNames:
    """Names of what one rank did.

    Args:
        rank: its part of the graph.
        calls: its communication.
    """

    def __init__(self, rank: RankGraph, calls: CollectiveCalls) -> None:
        self.rank = rank
        self.calls = calls
        self.activity = rank.timeline.activity

    def tracks(self, nodes: Ints, lanes: Ints) -> Ints:
        """Tracks of CPU nodes; of what follows a thread's last note it is the training loop's.

        Args:
            nodes: of this rank.
            lanes: their tracks, of threads.
        """
        points, main = self.rank.points, self.rank.timeline.window.track
        at = nodes - self.rank.first_point
        own = (at >= 0) & (at < len(points))
        rests = own & (points.role[np.where(own, at, 0)] == LAST)
        return ints(np.where(rests & (main != NONE), main, lanes))

    def cpu(self, time: Ints, track: Ints) -> list[str]:
        """Of what the CPU did at these times, ns since the base of the trace, on these tracks."""
        phase = self._phase_at(time)
        around = self._annotations.innermost(track, time)
        ops, main = self.activity.ops, self.rank.timeline.window.track
        chosen = np.where(phase != NONE, phase, around)
        # Behind the names of the trace stand those of threads.
        thread = np.where((track == main) | (main == NONE), 0, 1) + len(self.activity.names)
        code = thread if not len(ops) else np.where(chosen != NONE, ops.name[chosen], thread)
        return _words(code, [*self.activity.names, TRAINING_LOOP, BACKWARD_PASS].__getitem__)

    def function(self, time: int, track: int) -> str | None:
        """The Python function that ran then, where stacks are recorded: `file(line): name`."""
        row = int(self._frames.innermost(ints([track]), ints([time]))[0])
        if row == NONE:
            return None
        return function_name(self.activity.names[int(self.activity.frames.name[row])])

    def compute(self, rows: Ints) -> list[str]:
        """Of rows of `activity.gpu` the phase that launched each, else its family."""
        time = self.rank.timeline.launches.time[rows]
        phases = self._phase_at(time)
        names, ops, gpu = self.activity.names, self.activity.ops, self.activity.gpu
        family = len(names) + gpu.name[rows]
        code = family if not len(ops) else np.where(phases != NONE, ops.name[phases], family)
        return _words(
            code, lambda one: names[one] if one < len(names) else family_of(names[one - len(names)])
        )

    def communication(self, row: int) -> str:
        """Of a row of `activity.gpu`: dimension and collective."""
        at = int(np.searchsorted(self.calls.rows, row))
        if at >= len(self.calls.rows) or int(self.calls.rows[at]) != row:
            return "communication"
        kind = self.calls.kinds[int(self.calls.kind[at])]
        return f"{kind.dimension} {kind.collective}"

    def _phase_at(self, time: Ints) -> Ints:
        """Rows of `activity.ops`: the micro-batch at each time, else the innermost phase."""
        main = np.zeros_like(time)
        batch = self._microbatches.innermost(main, time)
        return ints(np.where(batch != NONE, batch, self._phases.innermost(main, time)))

    @cached_property
    def _microbatches(self) -> Nesting:
        ops, rows = self.activity.ops, self.rank.timeline.phase_spans
        names = self.activity.names
        rows = rows[[microbatch_span(names[code]) is not None for code in ops.name[rows].tolist()]]
        return Nesting(ops.start[rows], ops.end[rows], np.zeros(len(rows), dtype=np.int64), rows)

    @cached_property
    def _phases(self) -> Nesting:
        rows = self.rank.timeline.phase_spans
        ops = self.activity.ops
        return Nesting(ops.start[rows], ops.end[rows], np.zeros(len(rows), dtype=np.int64), rows)

    @cached_property
    def _annotations(self) -> Nesting:
        ops = self.activity.ops
        wanted = self.activity.named(ops, _tells) & ops.annotation
        return _nesting(ops, wanted)

    @cached_property
    def _frames(self) -> Nesting:
        frames = self.activity.frames
        return _nesting(frames, self.activity.named(frames, _is_function))


def _words(codes: Ints, word: Callable[[int], str]) -> list[str]:
    """What each code is called; each code is asked for once."""
    listed = codes.tolist()
    words = {code: word(code) for code in set(listed)}
    return [words[code] for code in listed]


def _nesting(rows: Rows, mask: np.ndarray) -> Nesting:
    at = np.flatnonzero(mask)
    return Nesting(rows.start[at], rows.end[at], ints(rows.track[at]), at)


def _tells(name: str) -> bool:
    unwanted = is_range(name) or name.startswith(_COMPILED)
    return not unwanted and step_number(name) is None


def _is_function(name: str) -> bool:
    """Whether a frame is a function of some file."""
    return not name.startswith((MODULE_FRAME, _BUILT_IN))
