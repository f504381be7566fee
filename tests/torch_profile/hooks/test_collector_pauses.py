# SPDX-License-Identifier: Apache-2.0
"""How long Python's garbage collector stops the process is measured, and nothing is left behind."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from typing import Any

import pytest

from megatron.torch_profile.hooks import collector_pauses
from megatron.torch_profile.hooks.collector_pauses import CollectorPauses
from megatron.torch_profile.plan.schedule import Window
from megatron.torch_profile.record.trace_metadata import TraceNotes


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Only collections that a test asks for; what a test leaves among the callbacks is seen."""
    before = list(gc.callbacks)
    gc.disable()
    yield
    gc.enable()
    assert gc.callbacks == before


def test_collections_between_start_and_stop_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100, 350, 1_000, 1_050])
    monkeypatch.setattr(collector_pauses.time, "perf_counter_ns", lambda: next(clock))
    pauses = CollectorPauses()
    gc.collect()
    pauses.start()
    gc.collect()
    gc.collect()
    pauses.stop()
    gc.collect()
    pauses.stop()
    assert pauses.counts() == {"collections": 2, "time_ns": 300, "longest_ns": 250}


def test_a_collection_that_began_before_the_window_is_not_measured() -> None:
    pauses = CollectorPauses()
    pauses.start()
    gc.callbacks[-1]("stop", {})
    pauses.stop()
    assert pauses.counts() == {"collections": 0, "time_ns": 0, "longest_ns": 0}


class Profiler:
    """Keeps what is written into the trace."""

    def __init__(self) -> None:
        self.written: dict[str, Any] = {}

    def add_metadata_json(self, key: str, value: str) -> None:
        self.written[key] = json.loads(value)


def test_the_trace_of_a_window_holds_the_pauses_in_it() -> None:
    profiler = Profiler()
    notes = TraceNotes(profiler, {"rank": 0}, Window(3, 4, warmup=1))
    gc.collect()
    notes.complete()
    gc.collect()
    pauses = profiler.written["torch_profile"]["garbage_collection"]
    assert pauses["collections"] == 1
    assert 0 < pauses["longest_ns"] == pauses["time_ns"]


def test_a_window_without_a_trace_leaves_no_callback() -> None:
    TraceNotes(Profiler(), {}, Window(3, 4, warmup=1)).close()
