# SPDX-License-Identifier: Apache-2.0
"""A trace that training saves itself, held for as long as that takes."""

from __future__ import annotations

from typing import Any

from megatron.torch_profile.export import messages
from megatron.torch_profile.export.trace_export import Export, write_artifacts
from megatron.torch_profile.export.writers import Program, save_and_compress


def save_here(profiler: Any, export: Export) -> Program | None:
    """Save a trace and what goes with it from training; whatever fails is said, and only that."""
    try:
        process = save_and_compress(profiler, export)
    except Exception as error:
        messages.lost(export, "trace", str(error) or type(error).__name__)
        return None
    try:
        write_artifacts(profiler, export)
    except Exception as error:
        messages.lost(export, "artifacts", str(error) or type(error).__name__)
    return process
