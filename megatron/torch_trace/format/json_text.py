# SPDX-License-Identifier: Apache-2.0
"""JSON that anybody may have written as Python's values, and values as JSON for every reader."""

from __future__ import annotations

import json
from math import isfinite
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


def text_of(value: Any, *, indent: int | None = None) -> str:
    """JSON that every reader accepts: NaN and infinity, which JSON does not know, are null."""
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not isfinite(value) else value
