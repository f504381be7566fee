# SPDX-License-Identifier: Apache-2.0
"""What polars says about a query, as one sentence that names the word and what would be right."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.query.words import one_line
from megatron.torch_trace.wording import listed, nearest

_MOST_CHARACTERS = 300
_COLUMN = re.compile(
    r"unable to find column \"(?P<a>[^\"]*)\"|no column named '(?P<b>[^']*)'"
    r"|no table or struct column named '(?P<c>[^']*)'"
)
_TABLE = re.compile(r"relation '(?P<name>[^']*)' was not found")
_FUNCTION = re.compile(r"unsupported function '(?P<name>[^']*)'")
_ENDING = re.compile(r"\n|; valid columns:|\. It's possible that|: \[\"|\w*\(\w+ \{")
"""Behind it polars shows its own insides, or every value."""
_NAME = re.compile(r"\w+\(Ident \{ value: \"([^\"]*)\".*?\)\) \}\)")


def mistake(
    error: BaseException, columns: Mapping[str, Sequence[str]], tables: Sequence[str]
) -> UsageError:
    """The error for the user.

    Args:
        error: of polars.
        columns: of the tables that the query names.
        tables: all that there are.
    """
    return UsageError(one_line(_sentence(error, columns, tables)))


def _sentence(
    error: BaseException, columns: Mapping[str, Sequence[str]], tables: Sequence[str]
) -> str:
    text = str(error)
    found = _TABLE.search(text)
    if found:
        return f"{found['name']}: no such table; {nearest(found['name'], tables)}"
    name = _column(error, text)
    if name is not None:
        known = sorted({column for names in columns.values() for column in names})
        where = f" in {listed(sorted(columns))}" if columns else ""
        return f"{name}: no such column{where}; {nearest(name, known)}"
    found = _FUNCTION.search(text)
    if found:
        return f"{found['name']}: no such function in polars' SQL; use another one."
    said = (
        _ENDING.split(_NAME.sub(r"\1", text), maxsplit=1)[0].strip().rstrip(".:")[:_MOST_CHARACTERS]
    )
    return f"the query cannot be answered: {said or 'polars gives no reason'}."


def _column(error: BaseException, text: str) -> str | None:
    found = _COLUMN.search(text)
    if found:
        return next(one for one in found.groups() if one is not None)
    if type(error).__name__ == "StructFieldNotFoundError":
        return text.splitlines()[0]
    return None
