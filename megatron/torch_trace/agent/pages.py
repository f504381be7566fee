# SPDX-License-Identifier: Apache-2.0
"""Answers that fit an agent's context: JSON of bounded length, and what is longer has pages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.wording import visible

MOST_CHARACTERS = 8_000
"""Of one answer: about 2,000 tokens of four characters, and no more than 4,000 of two."""
Row = Mapping[str, Any] | Sequence[Any]

_MOST_OF_A_TEXT = 400
_ROOM = 120
"""For the numbers of the page and what JSON writes between the parts."""


def answer(
    facts: Mapping[str, Any], rows: Sequence[Mapping[str, Any] | Sequence[Any]] = (), page: int = 1
) -> str:
    """One page of an answer.

    Args:
        facts: on every page; far shorter than a page.
        rows: as many as fit a page are on it.
        page: from 1.

    Raises:
        UsageError: there is no such page, or one row is longer than a page.
    """
    shown = _known(facts)
    texts = [_json(_known(row)) for row in rows]
    head = _json(shown)
    room = MOST_CHARACTERS - len(head) - _ROOM
    longest = max(map(len, texts), default=0)
    if longest > room:
        raise UsageError(
            f"a row has {longest:,} characters, and a page has room for {max(room, 0):,}; ask for "
            "fewer columns, or for parts of long texts and lists."
        )
    pages = _split(texts, room)
    if not 1 <= page <= len(pages):
        raise UsageError(f"page {page}: there are {len(pages)} pages; ask for 1 to {len(pages)}.")
    if not rows:
        return head
    tail = f'"rows":[{",".join(pages[page - 1])}],"page":{page},"pages":{len(pages)}}}'
    return f"{head[:-1]}{',' if shown else ''}{tail}"


def _split(texts: Sequence[str], room: int) -> list[list[str]]:
    pages: list[list[str]] = [[]]
    used = 0
    for text in texts:
        if pages[-1] and used + len(text) + 1 > room:
            pages.append([])
            used = 0
        pages[-1].append(text)
        used += len(text) + 1
    return pages


def _known(row: Row) -> Any:
    """What is unknown has no name in an object; in a list it keeps its place."""
    if isinstance(row, Mapping):
        return {name: _short(value) for name, value in row.items() if value is not None}
    return _short(list(row))


def _short(value: Any) -> Any:
    """Texts of traces without their middle, and without what would move a terminal's cursor."""
    if isinstance(value, str):
        text = visible(value)
        half = _MOST_OF_A_TEXT // 2
        return text if len(text) <= _MOST_OF_A_TEXT else f"{text[:half]}…{text[-half:]}"
    if isinstance(value, Mapping):
        return {str(name): _short(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_short(one) for one in value]
    return round(value, 6) if isinstance(value, float) else value


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
