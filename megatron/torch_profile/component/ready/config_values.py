# SPDX-License-Identifier: Apache-2.0
"""Values for fields of Megatron's TransformerConfig, which itself takes what it is given."""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from megatron.torch_profile.component.config import nearest
from megatron.torch_trace.errors import UsageError

_CHOICES = {
    "normalization": ("LayerNorm", "RMSNorm"),
    "fp8": ("e4m3", "hybrid"),
    "recompute_granularity": ("full", "selective"),
    "recompute_method": ("uniform", "block"),
}
"""Of fields that older versions have as plain text, and that only some parts look at."""
_PLAIN = (bool, int, float, str)


def check_values(config: type, given: Mapping[str, Any]) -> None:
    """Refuse what a field cannot be.

    Raises:
        UsageError: the argument, its value, and what would be right.
    """
    hints = _hints(config)
    for name, value in given.items():
        hint = hints.get(name)
        choices = _choices(hint) or _CHOICES.get(name)
        if choices is not None and value is not None and value not in choices:
            known = [str(one) for one in choices]
            raise UsageError(f"arguments.{name}: {value!r}{nearest(str(value), known)}")
        if hint is None or not _is_plain(hint):
            continue
        try:
            msgspec.convert(value, hint, strict=True)
        except msgspec.ValidationError as error:
            raise UsageError(f"arguments.{name}: {value!r}; {_told(error)}.") from None


def _hints(config: type) -> dict[str, Any]:
    try:
        return get_type_hints(config)
    except (NameError, TypeError):  # a version that names types which are not there
        return {}


def _choices(hint: Any) -> list[Any]:
    """The values of a Literal, also of one that may be None."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    others = [one for one in get_args(hint) if one is not type(None)]
    return _choices(others[0]) if len(others) == 1 and _is_union(hint) else []


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, UnionType)


def _is_plain(hint: Any) -> bool:
    """Whether it is made of numbers, text and truth values only."""
    if _is_union(hint):
        return all(_is_plain(one) for one in get_args(hint))
    return hint in _PLAIN or hint is type(None)


def _told(error: msgspec.ValidationError) -> str:
    """What msgspec says of a value as the end of a sentence."""
    text = str(error).partition(" - at")[0].replace("`", "").replace(" | null", " or null")
    return text.replace("Expected", "must be").replace(", got", ", not")
