# SPDX-License-Identifier: Apache-2.0
"""Flags that change nothing without another one: whoever gives one of them alone is told.

A further such flag is a name in the table.
"""

from __future__ import annotations

from collections.abc import Callable

from megatron.torch_profile.config import TorchProfileConfig, flag_of
from megatron.torch_trace.errors import UsageError

SLOW_ITERATION = "slow-iteration"

_NEEDS: dict[tuple[str, ...], tuple[Callable[[TorchProfileConfig], bool], str]] = {
    ("memory_snapshot_entries", "memory_snapshot_stacks"): (
        lambda config: config.records_history,
        flag_of("memory_snapshot"),
    ),
    ("monitor_interval",): (lambda config: config.monitor, flag_of("monitor")),
    ("trigger_factor", "trigger_windows", "trigger_apart", "trigger_ranks"): (
        lambda config: SLOW_ITERATION in (config.trigger or ()),
        f"{flag_of('trigger')} {SLOW_ITERATION}",
    ),
}


def check(config: TorchProfileConfig) -> None:
    """Refuse a flag that differs from its default and whose needed flag is not there.

    Raises:
        UsageError: one sentence.
    """
    usual = TorchProfileConfig()
    for names, (is_there, needed) in _NEEDS.items():
        for name in names:
            value = getattr(config, name)
            if value != getattr(usual, name) and not is_there(config):
                shown = " ".join(value) if isinstance(value, list) else f"{value}"
                raise UsageError(f"{flag_of(name)} {shown}: does nothing without {needed}.")
