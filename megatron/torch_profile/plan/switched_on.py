# SPDX-License-Identifier: Apache-2.0
"""What the plan says is switched on beside the recording itself."""

from __future__ import annotations

from dataclasses import fields

from megatron.torch_profile.config import TorchProfileConfig, flag_of


def switched_on(config: TorchProfileConfig) -> list[str]:
    """Flags with their values, as on a command line; those that a preset gives, too."""
    flags = [
        flag_of(field.name)
        for field in fields(config)
        if field.name not in ("enabled", "with_modules") and getattr(config, field.name) is True
    ]
    if config.wanted_spans:
        flags.append(f"{flag_of('spans')} {' '.join(sorted(config.wanted_spans, reverse=True))}")
    if config.trigger:
        flags.append(f"{flag_of('trigger')} {' '.join(config.trigger)}")
    if config.on_hang is not None:
        flags.append(f"{flag_of('on_hang')} {config.on_hang:g}")
    return flags
