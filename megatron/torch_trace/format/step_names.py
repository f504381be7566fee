# SPDX-License-Identifier: Apache-2.0
"""Names of profiler steps: `ProfilerStep#5`, and how older and other writers spell it."""

from __future__ import annotations

import re

from megatron.torch_trace.format.categories import category

MENTION = "ProfilerStep"
"""Text without this word names no step."""

SIGN = "#"
"""A name without it is no step's: found in half the time of the word, and few other names have one.
"""

_STEP = re.compile(r"ProfilerStep\s*#\s*(\d{1,18})")
_CATEGORIES = frozenset({"user_annotation", "cpu_op"})
"""torch 1.8 and 1.9 wrote steps as operators. On the GPU's tracks they are no steps."""


def step_number(name: str) -> int | None:
    """The number of the step that a name tells, or None."""
    match = _STEP.fullmatch(name) if name.startswith(MENTION) else None
    return int(match[1]) if match else None


def marks_a_step(name: str, written_category: str) -> int | None:
    """The number of the step that a slice of the CPU marks, or None."""
    number = step_number(name)
    return number if number is not None and category(written_category) in _CATEGORIES else None
