# SPDX-License-Identifier: Apache-2.0
"""What torch's profiler may be asked for, and whether the GPU lets it stop."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gates import MINUTES, Gate

from megatron.torch_profile.record import kineto, python_stacks


def test_a_gpu_is_asked_from_beside(monkeypatch: pytest.MonkeyPatch, gate: Gate) -> None:
    assert kineto.gpu_is_done(0.1), "no GPU in use waits for nobody"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: gate.go_through())
    assert not kineto.gpu_is_done(0.05)
    gate.open()
    assert kineto.gpu_is_done(MINUTES)


@pytest.mark.parametrize(
    ("python", "torch_version", "crashes", "said"),
    [
        ((3, 10, 13), "2.4.1", False, None),
        ((3, 12, 1), "2.9.0", False, "Python 3.12.1 does not report some calls"),
        ((3, 12, 5), "2.6.0", False, None),
        ((3, 13, 2), "2.6.0+cu124", True, "torch 2.6.0+cu124 crashes when it records stacks"),
        ((3, 13, 2), "2.10.0a0+git1", False, None),
    ],
)
def test_stacks_that_would_end_training_are_not_recorded(
    python: tuple[int, ...], torch_version: str, crashes: bool, said: str | None
) -> None:
    assert python_stacks.crash(python, torch_version) == crashes
    trouble = python_stacks.trouble(python, torch_version)
    assert trouble == said or str(trouble).startswith(str(said))


@pytest.mark.parametrize(
    ("result", "has"),
    [
        (None, False),
        (SimpleNamespace(trace_start_ns=lambda: 0), False),
        (SimpleNamespace(trace_start_ns=lambda: 7), True),
        (SimpleNamespace(trace_start_us=lambda: 7), True),
        (SimpleNamespace(trace_start_us=lambda: 0), False),
        (SimpleNamespace(), True),
    ],
)
def test_a_result_without_a_start_was_cancelled(result: Any, has: bool) -> None:
    profiler = SimpleNamespace(profiler=SimpleNamespace(kineto_results=result))
    assert kineto.has_result(profiler) == has
