# SPDX-License-Identifier: Apache-2.0
"""Waits that the trace tells: an event is recorded on one stream, and another one waits for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from trace_builder import TraceBuilder

from megatron.torch_trace.analysis.replay.kernels.recorded_waits import RecordedWaits
from megatron.torch_trace.columns.intervals import ints

RECORD, WAIT = 91, 92
"""Correlations of the two calls."""


class Waiting:
    """Two kernels on stream 23, one on stream 7; the event is recorded between the two."""

    def __init__(self) -> None:
        self.trace = TraceBuilder(0, 1).step(1, 0, 200_000)
        self.trace.gpu("before", 10_000, 20_000, launch=5_000, stream=23)
        self.trace.gpu("behind", 20_000, 60_000, launch=15_000, stream=23)
        self.trace.gpu("waits", 70_000, 80_000, launch=30_000, stream=7)

    def call(self, name: str, at: int, correlation: int) -> None:
        self.trace.call(name, at, at + 2, args={"correlation": correlation})

    def wait(self, name: str, at: int, *, stream: int, record: int | None = RECORD) -> None:
        args = {"stream": stream, "correlation": WAIT, "wait_on_stream": 23}
        if record is not None:
            args["wait_on_cuda_event_record_corr_id"] = record
        self.trace.slice("cuda_sync", name, at, 1, pid=0, tid=stream, args=args)

    def found(self, folder: Path) -> tuple[list[tuple[str, str]], dict[int, str]]:
        """Pairs of work of which the second waits for the first; calls, and what they wait for."""
        timeline = self.trace.timeline(folder)
        gpu, names = timeline.activity.gpu, timeline.activity.names
        waits = RecordedWaits(timeline, ints(np.arange(len(gpu))))

        def name(row: int) -> str:
            return names[int(gpu.name[row])]

        pairs = zip(*(one.tolist() for one in waits.of_streams()), strict=True)
        return (
            [(name(one), name(other)) for one, other in pairs],
            {call: name(row) for call, row in waits.of_calls().items()},
        )


@pytest.mark.parametrize(
    ("recorded", "waiting", "pairs"),
    [
        (10_000, 25_000, [("before", "waits")]),
        (18_000, 25_000, [("behind", "waits")]),
        (4_000, 25_000, []),  # nothing had been launched
        (10_000, 31_000, []),  # nothing is launched on the stream that waits
    ],
)
def test_the_next_work_of_a_stream_waits_for_the_last_before_the_record(
    recorded: int, waiting: int, pairs: list[tuple[str, str]], tmp_path: Path
) -> None:
    built = Waiting()
    built.call("cudaEventRecord", recorded, RECORD)
    built.call("cudaStreamWaitEvent", waiting, WAIT)
    built.wait("Stream Wait Event", waiting + 1_000, stream=7)
    assert built.found(tmp_path) == (pairs, {})


@pytest.mark.parametrize("record", [None, 77])
def test_an_event_whose_record_is_not_in_the_trace_is_unknown(
    record: int | None, tmp_path: Path
) -> None:
    built = Waiting()
    built.wait("Stream Wait Event", 25_000, stream=7, record=record)
    built.wait("Event Sync", 40_000, stream=7, record=record)
    assert built.found(tmp_path) == ([], {})


def test_a_wait_whose_call_is_not_in_the_trace_is_where_the_file_has_it(tmp_path: Path) -> None:
    built = Waiting()
    built.call("cudaEventRecord", 10_000, RECORD)
    built.wait("Stream Wait Event", 31_000, stream=7)  # behind the launch: nothing waits
    built.wait("Stream Sync", 12_000, stream=23)
    assert built.found(tmp_path) == ([], {WAIT: "before"})


def test_calls_wait_for_an_event_or_for_all_of_a_stream(tmp_path: Path) -> None:
    event = Waiting()
    event.call("cudaEventRecord", 10_000, RECORD)
    event.call("cudaEventSynchronize", 40_000, WAIT)
    event.wait("Event Sync", 40_000, stream=7)
    assert event.found(tmp_path) == ([], {WAIT: "before"})
    stream = Waiting()
    stream.call("cudaStreamSynchronize", 40_000, WAIT)
    stream.wait("Stream Sync", 40_000, stream=23, record=None)
    assert stream.found(tmp_path) == ([], {WAIT: "behind"})
