# SPDX-License-Identifier: Apache-2.0
"""A window behind one whose profiler still stops, or whose trace is still saved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gates import Gate
from recordings import end, make, spans, train
from recordings import signals as signals
from slow_stop import WAITS, last_until_training_waits, needs_stop_in_a_thread, stops_wait_at
from written_files import files_below

from megatron.torch_profile.export.native_profiler import NativeProfiler, Result

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore::FutureWarning"),
    needs_stop_in_a_thread,
]


def test_the_next_window_waits_for_the_stop_of_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    last_until_training_waits(NativeProfiler, "stop", said, monkeypatch)
    recorder = make(tmp_path, repeat=3)
    train(recorder, range(1, 10))
    end(recorder)
    assert files_below(tmp_path) == [f"iter-000000{n}/rank-0.pt.trace.json.gz" for n in (3, 5, 7)]
    for number in (3, 5, 7):
        path = tmp_path / f"iter-000000{number}/rank-0.pt.trace.json.gz"
        assert spans(path, "ProfilerStep") == [f"ProfilerStep#{number}"]
    assert (
        "rank 0 waits for the last window, whose trace is not saved yet, before it records "
        "iteration 5"
    ) in said


def test_a_window_with_a_long_warm_up_takes_its_place_without_a_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str], gate: Gate
) -> None:
    stops_wait_at(gate, monkeypatch)
    recorder = make(tmp_path, repeat=2, warmup=4)
    train(recorder, range(1, 10))
    assert recorder.exporter.in_flight == 1
    assert recorder._open is None, "its warm-up has begun without it"
    gate.open()
    recorder.exporter.wait()
    train(recorder, range(10, 15))
    end(recorder)
    assert len(files_below(tmp_path)) == 2
    assert not any(WAITS in line for line in said)


def test_the_next_window_waits_until_the_trace_of_the_last_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    # Kineto works out the times of GPU rows while it saves, with a clock that the next one sets.
    saved: list[int] = []
    prepared: list[int] = []
    last_until_training_waits(Result, "save", said, monkeypatch)
    free, prepare = Result.free, torch.profiler.profile.prepare_trace
    monkeypatch.setattr(Result, "free", lambda result: (free(result), saved.append(1)))
    monkeypatch.setattr(
        torch.profiler.profile,
        "prepare_trace",
        lambda profiler: (prepared.append(len(saved)), prepare(profiler)),
    )
    recorder = make(tmp_path, repeat=2)
    train(recorder, range(1, 9))
    end(recorder)
    assert prepared == [0, 1]
    assert len(files_below(tmp_path)) == 2
    assert any(WAITS in line for line in said)
