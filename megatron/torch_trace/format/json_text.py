# SPDX-License-Identifier: Apache-2.0
"""JSON that anybody may have written, as Python's values."""

from __future__ import annotations

import json
from typing import Any


def value_of(text: bytes | str) -> Any:
    """What a JSON text holds; whole numbers that Python refuses to make are None.

    Raises:
        ValueError: it is no JSON, or nested deeper than Python can follow.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError:
        return json.loads(text, parse_int=_whole_number)


def _whole_number(text: str) -> int | None:
    # Of thousands of digits Python makes none, and nothing in a trace is counted so far.
    return int(text) if len(text) < 1_000 else None
