# SPDX-License-Identifier: Apache-2.0
"""Windows that training ends, leaves out, or that a signal cuts short."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from recordings import end, make, spans, train
from recordings import signals as signals
from recordings import training_stops as training_stops
from written_files import files_below

from megatron.torch_profile.record import kineto

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore::FutureWarning")


def test_the_last_iteration_of_training_is_exported_at_its_end(tmp_path: Path) -> None:
    recorder = make(tmp_path, last=3)
    train(recorder, range(1, 4))
    recorder.exporter.wait()
    assert files_below(tmp_path) == []
    end(recorder)
    assert files_below(tmp_path) == ["iter-0000003/rank-0.pt.trace.json.gz"]


def test_a_window_cut_short_is_exported_and_marked_partial(
    tmp_path: Path, warned: list[str]
) -> None:
    recorder = make(tmp_path, active=3)
    train(recorder, range(1, 5))
    end(recorder)
    assert files_below(tmp_path) == ["iter-0000003-0000005/rank-0.partial.pt.trace.json.gz"]
    assert warned == ["rank 0 has only iterations 3-4 of the window of iterations 3-5"]


def test_a_signal_in_the_last_iteration_of_a_window_leaves_a_partial_trace(
    tmp_path: Path, warned: list[str]
) -> None:
    signal.signal(signal.SIGUSR1, lambda *_: None)  # somebody's, so that the process goes on
    recorder = make(tmp_path)
    train(recorder, range(1, 4))
    signal.raise_signal(signal.SIGUSR1)
    train(recorder, range(4, 6))
    end(recorder)
    assert files_below(tmp_path) == ["iter-0000003/rank-0.partial.pt.trace.json.gz"]
    assert warned == [
        "rank 0 received SIGUSR1: saving what is recorded",
        "rank 0 has only iteration 3 of the window of iteration 3 (the last in part)",
    ]


def test_a_signal_while_the_window_closes_at_the_end_of_training_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: served.append(recorder.exporter.in_flight))
    recorder = make(tmp_path, last=3)
    train(recorder, range(1, 4))
    end_beside = kineto.end_beside

    def interrupted(profiler: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return end_beside(profiler)

    monkeypatch.setattr(kineto, "end_beside", interrupted)
    end(recorder)
    assert served == [1], "whoever handles it was asked when the trace was on its way"
    assert files_below(tmp_path) == ["iter-0000003/rank-0.pt.trace.json.gz"]


def test_a_training_that_ends_in_warmup_leaves_no_trace_and_says_so(
    tmp_path: Path, warned: list[str]
) -> None:
    recorder = make(tmp_path, warmup=3)
    train(recorder, range(1, 4))
    end(recorder)
    assert files_below(tmp_path) == []
    assert warned == ["training ended in the warm-up of iteration 5: no trace"]
    # Kineto is free again: it records only once at a time.
    second = make(tmp_path, warmup=0, skip_first=0)
    train(second, range(1, 3))
    end(second)
    assert files_below(tmp_path) == ["iter-0000001/rank-0.pt.trace.json.gz"]


def test_evaluation_after_the_last_iteration_is_not_recorded(tmp_path: Path) -> None:
    recorder = make(tmp_path, active=2)
    train(recorder, range(1, 4))
    recorder.begin_pause()  # in the middle: the window stays open
    assert files_below(tmp_path) == []
    train(recorder, range(4, 5))
    recorder.begin_pause()
    recorder.exporter.wait()
    assert len(files_below(tmp_path)) == 1
    with torch.profiler.record_function("evaluation"):
        torch.ones(3)
    train(recorder, range(5, 7))
    end(recorder)
    assert spans(tmp_path / files_below(tmp_path)[0], "ProfilerStep", "evaluation") == [
        "ProfilerStep#3",
        "ProfilerStep#4",
    ]


def test_iterations_that_training_skips_cost_their_windows_only(
    tmp_path: Path, warned: list[str]
) -> None:
    recorder = make(tmp_path, iterations=["2", "4-5", "8"])
    train(recorder, iter([1, 3, 5, 6, 7, 8, 9]))
    end(recorder)
    assert files_below(tmp_path) == [
        "iter-0000004-0000005/rank-0.partial.pt.trace.json.gz",
        "iter-0000008/rank-0.pt.trace.json.gz",
    ]
