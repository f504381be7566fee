# SPDX-License-Identifier: Apache-2.0
"""Flags that change nothing without another one."""

from __future__ import annotations

from typing import Any

import pytest

from megatron.torch_profile.config import TorchProfileConfig
from megatron.torch_profile.plan import needed_flags
from megatron.torch_trace.errors import UsageError

SLOW = "--torch-profile-trigger slow-iteration"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (
            {"memory_snapshot_entries": 9},
            "memory-snapshot-entries 9: {--torch-profile-memory-snapshot}",
        ),
        (
            {"memory_snapshot_stacks": "all"},
            "memory-snapshot-stacks all: {--torch-profile-memory-snapshot}",
        ),
        ({"monitor_interval": 5}, "monitor-interval 5: {--torch-profile-monitor}"),
        ({"trigger_factor": 2.0}, f"trigger-factor 2.0: {{{SLOW}}}"),
        ({"trigger_windows": 1}, f"trigger-windows 1: {{{SLOW}}}"),
        ({"trigger_apart": 5, "trigger": ["file"]}, f"trigger-apart 5: {{{SLOW}}}"),
        ({"trigger_ranks": ["0", "3"]}, f"trigger-ranks 0 3: {{{SLOW}}}"),
    ],
    ids=str,
)
def test_a_flag_that_does_nothing_alone_says_what_it_needs(
    flags: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError) as error:
        needed_flags.check(TorchProfileConfig(**flags))
    shown, _, needed = says.partition(": ")
    assert str(error.value) == f"--torch-profile-{shown}: does nothing without {needed[1:-1]}."


@pytest.mark.parametrize(
    "flags",
    [
        {"memory_snapshot_entries": 9, "memory_timeline": True},
        {"monitor_interval": 5, "monitor": True},
        {"trigger_factor": 2.0, "trigger": ["slow-iteration"]},
        {},
    ],
    ids=str,
)
def test_with_what_it_needs_it_is_taken(flags: dict[str, Any]) -> None:
    needed_flags.check(TorchProfileConfig(**flags))
