# SPDX-License-Identifier: Apache-2.0
"""Parts of a change's value: names and factors, and of wrong ones what was meant."""

from __future__ import annotations

import re
from difflib import get_close_matches

from megatron.torch_trace.analysis.replay.change import ALL

USUAL_FACTOR = 0.5
MOST_FACTOR = 1e6
"""More does not fit into whole nanoseconds, whatever the iteration."""
_DIMENSIONS = ("tp", "pp", "dp", "cp", "ep", "edp", "etp", "mp", ALL)
"""From these comes the nearest right one; a trace may have others, such as `tp-cp`."""
_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?"


def name_and_factor(value: str) -> tuple[str | None, float | None]:
    """Name and factor of `NAME*FACTOR`; None of what is not there."""
    name, sign, text = value.rpartition("*")
    return (name.strip(), factor_of(text)) if sign else (None, None)


def factor_of(text: str) -> float | None:
    """A factor that is one; else None."""
    if not re.fullmatch(_NUMBER, text.strip()):
        return None
    number = float(text)
    return number if number <= MOST_FACTOR else None


def factor_near(value: str, usual: float = USUAL_FACTOR) -> float:
    """The factor that was meant: of `dp*50%` and `dp*0,5` a half, of `dp*-30%` 0.7."""
    found = re.findall(rf"(?<![\w.])(-?)({_NUMBER})(\s*%)?", value.replace(",", "."))
    if not found:
        return usual
    less, number, percent = found[-1]
    factor = min(float(number) / (100 if percent else 1), MOST_FACTOR)
    return max(1 - factor, 0) if less else factor


def dimension_near(value: str) -> str:
    """The dimension that was meant."""
    word = re.match(r"[A-Za-z_-]*", value)
    near = get_close_matches(word[0].lower() if word else "", _DIMENSIONS, n=1, cutoff=0.3)
    return near[0] if near else "dp"


def name_near(value: str, usual: str) -> str:
    """The name that was meant."""
    word = re.match(r"[A-Za-z_][\w.]*", value)
    return word[0] if word else usual


def first_number(value: str, usual: int) -> int:
    """The first whole number in a value."""
    found = re.search(r"\d+", value)
    return int(found[0]) if found else usual
