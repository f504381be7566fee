# SPDX-License-Identifier: Apache-2.0
"""docs/metrics.md lists every flag and every key."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from megatron.torch_profile.metrics import (
    across_ranks,
    iteration_memory,
    nvml,
    run_metrics,
    step_times,
    telemetry,
    timers,
)
from megatron.torch_profile.metrics_config import MetricsConfig
from megatron.torch_profile.record.compilations import COUNTS

TEXT = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
KEYS = set(re.findall(r"`([^`\n]+)`", TEXT))


def test_every_flag_has_its_row() -> None:
    rows = re.findall(r"^\| `(--log[\w-]*)[^`]*` \| off \|", TEXT, re.MULTILINE)
    assert rows == [f"--{field.name.replace('_', '-')}" for field in fields(MetricsConfig)]


def test_every_key_has_its_row() -> None:
    timer_keys = timers.summarise(timers.Reading(["<name>"], [[1.0]], 1.0))
    split_keys = step_times.StepSplit(1, 1, 1.0, 0.5, 1, 1, 1.0, 1, 1.0).values()
    gpu_keys = [f"gpu/{quantity}" for quantity in telemetry.QUANTITIES]
    memory_keys = [f"memory/{quantity}" for quantity in run_metrics.MEMORY]
    memory_keys += [f"memory/iteration/{field}" for field in iteration_memory.FIELDS]
    spread_keys = [key.removeprefix("x") for key in across_ranks.spread("x", [1.0])][1:]
    compile_keys = [f"compile/{count}" for count in COUNTS]
    reasons = [reason.replace(" ", "_") for reason in nvml.THROTTLES.values()]
    expected = {
        *timer_keys,
        *split_keys,
        *gpu_keys,
        *memory_keys,
        *compile_keys,
        *spread_keys,
        *reasons,
        "gpu/throttled_ranks",
        "gpu/throttle/<reason>",
    }
    assert expected - KEYS == set()
    documented = {key for key in KEYS if re.match("(timers|train|gpu|memory|compile)/", key)}
    assert documented - expected == {"timers/evaluate-time", "timers/save-checkpoint-time"}
