# SPDX-License-Identifier: Apache-2.0
"""Who stops a window's profiler and writes its trace: every case of one function, as a table."""

from __future__ import annotations

import os
import resource
from typing import Any

import pytest
import torch

from megatron.torch_profile.config import TorchProfileConfig
from megatron.torch_profile.export.endings import Ending
from megatron.torch_profile.export.native_profiler import native_profiler
from megatron.torch_profile.hooks import cuda_graphs
from megatron.torch_profile.record import stop_decision
from megatron.torch_profile.record.stop_decision import Circumstances, Decision, decide

GRAPHS = "CUDA graphs are replayed, and no other thread may stop it beside a replay"
MEMORY = "memory is limited (ulimit -v, or no overcommit), and the stop may need more"
FILES = "the limit on open files (ulimit -n) leaves too few for a thread that saves"
TORCH = f"torch {torch.__version__} cannot stop its profiler from another thread here"
EVENTS = "--torch-profile-profile-memory records nothing with a profiler of all threads"
thread, fork, training = Ending.THREAD, Ending.FORK, Ending.TRAINING

# Flags, circumstances: who ends it, and why training is held.
BEFORE: list[tuple[dict[str, Any], dict[str, bool], Ending, str | None]] = [
    ({}, {}, thread, None),
    ({"with_stack": True, "record_shapes": True, "with_flops": True}, {}, thread, None),
    ({"execution_trace": True}, {}, thread, None),
    ({"key_averages": True, "stacks": True, "with_stack": True}, {}, thread, None),
    ({"profile_memory": True}, {}, fork, EVENTS),
    ({}, {"thread_may_stop": False}, fork, TORCH),
    ({}, {"graphs": True}, fork, GRAPHS),
    ({}, {"memory_is_limited": True}, fork, MEMORY),
    ({}, {"few_files": True}, fork, FILES),
    ({}, {"graphs": True, "memory_is_limited": True, "few_files": True}, fork, GRAPHS),
    ({"export": "sync"}, {}, training, None),
    ({"export": "sync", "profile_memory": True}, {"graphs": True}, training, None),
]


@pytest.mark.parametrize(("flags", "found", "ending", "why"), BEFORE, ids=str)
def test_before_a_window(
    flags: dict[str, Any], found: dict[str, bool], ending: Ending, why: str | None
) -> None:
    config = TorchProfileConfig(enabled=True, **flags)
    assert decide(config, Circumstances(**found)) == Decision(ending, why)


# What was decided before the window, circumstances at its end: who ends it, and why.
AT_THE_END: list[tuple[Decision, dict[str, bool], Ending, str | None]] = [
    (Decision(thread), {}, thread, None),
    (Decision(thread), {"graphs": True}, fork, GRAPHS),
    (Decision(thread), {"memory_is_limited": True}, fork, MEMORY),
    (Decision(thread), {"few_files": True}, fork, FILES),
    # Python has ended the script: no thread and no fork can be had.
    (Decision(thread), {"process_ends": True}, training, None),
    (Decision(fork, GRAPHS), {"graphs": True, "process_ends": True}, training, None),
    # It was prepared for the thread that trains: no other may stop it, whatever has become better.
    (Decision(fork, FILES), {}, fork, FILES),
    (Decision(fork, MEMORY), {"graphs": True}, fork, MEMORY),
    (Decision(training), {}, training, None),
]


@pytest.mark.parametrize(("before", "found", "ending", "why"), AT_THE_END, ids=str)
def test_at_the_end_of_a_window(
    before: Decision, found: dict[str, bool], ending: Ending, why: str | None
) -> None:
    config = TorchProfileConfig(enabled=True)
    assert decide(config, Circumstances(**found), before) == Decision(ending, why)


@pytest.mark.skipif(
    native_profiler() is None,
    reason="this torch cannot stop its profiler from another thread on this machine",
)
def test_circumstances_are_looked_up_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "_used", False)
    assert Circumstances.now() == Circumstances()
    with monkeypatch.context() as other:
        other.setattr(resource, "getrlimit", lambda _: (10**9, 10**9))
        assert Circumstances.now() == Circumstances(memory_is_limited=True)
    with monkeypatch.context() as other:
        other.setattr(stop_decision, "native_profiler", lambda: None)
        assert Circumstances.now() == Circumstances(thread_may_stop=False)
    with monkeypatch.context() as other:

        def no_file(*_: Any) -> int:
            raise OSError

        other.setattr(os, "open", no_file)
        assert Circumstances.now() == Circumstances(few_files=True)
    cuda_graphs.expect()
    assert Circumstances.now() == Circumstances(graphs=True)
