# SPDX-License-Identifier: Apache-2.0
"""What a recorder that fails, or whose training has failed, does to training: nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gates import until
from recordings import end, make, train
from recordings import signals as signals
from written_files import files_below

from megatron.torch_profile.export.background import Exporter
from megatron.torch_profile.record import kineto
from megatron.torch_profile.spans.window_spans import Spans

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore::FutureWarning")


def test_a_failure_is_said_once_and_ends_profiling_only(
    tmp_path: Path, warned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Exporter, "end_beside", no_space)
    recorder = make(tmp_path, repeat=0)
    train(recorder, range(1, 15))
    end(recorder)
    assert warned == [
        "rank 0 stops profiling, training goes on: OSError: [Errno 28] No space left on device"
    ]
    monkeypatch.undo()
    after = make(tmp_path)
    train(after, range(1, 5))
    end(after)
    assert len(files_below(tmp_path)) == 1


def test_after_a_failure_earlier_traces_are_still_looked_after(tmp_path: Path) -> None:
    recorder = make(tmp_path)
    train(recorder, range(1, 5))
    recorder._guard.failed = True

    def is_done() -> bool:
        train(recorder, range(5, 6))
        return recorder.exporter.in_flight == 0

    assert until(is_done)
    recorder.signals.remove()


def test_a_failure_while_giving_up_is_none_of_trainings_business(
    tmp_path: Path, warned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("spans are broken")

    monkeypatch.setattr(Spans, "close", broken)
    recorder = make(tmp_path, with_modules=True)
    train(recorder, range(1, 6))
    end(recorder)
    assert warned == [
        "rank 0 stops profiling, training goes on: RuntimeError: spans are broken",
    ]


def test_a_failed_training_is_not_held_by_a_gpu_that_waits_for_a_rank_that_is_gone(
    tmp_path: Path, warned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kineto, "gpu_is_done", lambda seconds: False)
    recorder = make(tmp_path)
    train(recorder, range(1, 4))
    held = recorder._open.profiler
    recorder.close(after_failure=True)
    assert warned == [
        "rank 0 loses the window of iteration 3: its GPU still waits after 20 s, maybe for a rank "
        "that is gone"
    ]
    kineto.discard(held, started=True)
