# SPDX-License-Identifier: Apache-2.0
"""Memory after every iteration, beside what is logged at every interval."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from logging_megatron import Follow

from megatron.torch_profile.metrics.iteration_memory import IterationMemory
from megatron.torch_profile.metrics.nvml import GIB
from megatron.torch_profile.metrics_config import MetricsConfig


@pytest.fixture
def growing(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's numbers grow by a GiB whenever they are asked for."""
    asked: list[int] = []

    def stats() -> dict[str, Any]:
        asked.append(1)
        used = len(asked) * int(GIB)
        return {
            "allocated_bytes": {"all": {"current": used, "peak": 2 * used}},
            "reserved_bytes": {"all": {"current": 3 * used}},
        }

    monkeypatch.setattr(torch.cuda.memory, "memory_stats_as_nested_dict", stats)


def test_every_iteration_has_a_line_whatever_the_log_interval(
    follow: Follow, growing: None, tmp_path: Path
) -> None:
    gpu: Any = SimpleNamespace(memory_used_gib=lambda: 50.0)
    follow(
        4,
        2,
        config=MetricsConfig(log_memory_every_iteration=True),
        memory=IterationMemory(3, gpu),
    )
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == [1, 2, 3, 4]
    assert {key: value for key, value in lines[2].items() if "/" in key} == {
        "memory/iteration/allocated_gib": 3.0,
        "memory/iteration/reserved_gib": 9.0,
        "memory/iteration/peak_gib": 6.0,
        "memory/iteration/gpu_used_gib": 50.0,
        "memory/iteration/rank": 3,
    }


def test_a_card_that_does_not_tell_costs_its_own_number_alone(growing: None) -> None:
    def fails() -> float:
        raise OSError("no such card")

    gpu: Any = SimpleNamespace(memory_used_gib=fails)
    memory = IterationMemory(0, gpu)
    for _ in range(2):
        assert "memory/iteration/gpu_used_gib" not in memory.values()
        assert "memory/iteration/allocated_gib" in memory.values()


def test_without_a_gpu_there_is_nothing() -> None:
    assert torch.cuda.is_available() or IterationMemory.of_this_process(0) is None
