# SPDX-License-Identifier: Apache-2.0
"""What a query may say: one query that reads tables, and nothing that reads a file.

polars' SQL also knows CREATE, DROP, DELETE, and functions that read files in place of a table,
such as read_csv. The words of a query are told apart as polars does: text between quotes and
comments hold no words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from megatron.torch_trace.errors import UsageError

_MOST_CHARACTERS, _MOST_WORDS = 20_000, 1_000
"""polars takes a second for a sum of 500 terms, and nine for one of 1,280."""
_TOKEN = re.compile(
    r"""
    (?P<space>\s+|--[^\n]*)
  | (?P<comment>/\*)
  | (?P<text>'(?:[^']|'')*')
  | (?P<name>"(?:[^"]|"")*"|`[^`]*`|[^\W\d]\w*)
  | (?P<number>\d[\w.]*)
  | (?P<open>['"`])
  | (?P<sign>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_READS_A_FILE = re.compile(r"(?:read|scan|sink|write|load|copy)(?:_|$)")
_BEFORE_A_TABLE = frozenset({"from", "join", ","})


@dataclass(frozen=True, slots=True)
class Query:
    """A query that only reads.

    Args:
        text: for polars, without comments.
        tables: names that stand where a table may stand, in lower case, also of its own `WITH`.
    """

    text: str
    tables: frozenset[str]


def read(query: str) -> Query:
    """The query, if it is one that only reads tables.

    Raises:
        UsageError: it is empty, too long, several, no query, or would read a file.
    """
    if len(query) > _MOST_CHARACTERS:
        raise UsageError(
            f"the query has {len(query):,} characters; write one with at most {_MOST_CHARACTERS:,}."
        )
    text, words = _words(query)
    if len(words) > _MOST_WORDS:
        raise UsageError(
            f"the query has {len(words):,} words and signs; write one with at most {_MOST_WORDS:,}."
        )
    while words and words[-1] == ";":
        words.pop()
        text = text.rstrip().removesuffix(";")
    _refuse(words)
    for name, following in pairwise(words):
        if following == "(" and _READS_A_FILE.match(_plain(name)):
            raise UsageError(
                f"{one_line(_plain(name))}: would read a file, and a query reads only the tables "
                "of the traces; torch-trace sql --list names them."
            )
    return Query(text, _tables(words))


def _words(query: str) -> tuple[str, list[str]]:
    """The query without comments, and its words and signs, names in lower case."""
    kept: list[str] = []
    words: list[str] = []
    at = 0
    while at < len(query):
        match = _TOKEN.match(query, at)
        assert match is not None
        kind, found, at = match.lastgroup, match[0], match.end()
        if kind == "comment":
            at = _end_of_comment(query, at)
            found, kind = " ", "space"
        elif kind == "open":
            raise UsageError(f"the query has a {found} without its end; close the quotes.")
        elif found in ("$", "\0"):
            raise UsageError(
                f"the query has the character {found!r}; write texts in single quotes."
            )
        elif kind == "text" and kept and re.search(r"\w$", kept[-1]):
            # E'...' and the like have rules of their own for where they end.
            raise UsageError(
                f"{kept[-1]}{one_line(found)}: write a text as '...', with a blank before it."
            )
        if kind == "space":
            kept.append(found if found.isspace() else " ")
            continue
        kept.append(found)
        words.append(found.lower() if kind == "name" else found)
    return "".join(kept), words


def _end_of_comment(query: str, start: int) -> int:
    end = query.find("*/", start)
    if end < 0 or "/*" in query[start:end]:
        raise UsageError("the query has a /* without its */; close the comment.")
    return end + 2


def _refuse(words: list[str]) -> None:
    first = next((word for word in words if word != "("), None)
    if first is None:
        raise UsageError("the query is empty; write one, such as 'select * from ranks'.")
    if first not in ("select", "with"):
        raise UsageError(
            f"{one_line(first.upper())}: is no query; begin with SELECT or WITH, which only read "
            "(torch-trace sql --list names the tables)."
        )
    if ";" in words:
        raise UsageError("the query has a ; in the middle; ask one query at a time.")


def _tables(words: list[str]) -> frozenset[str]:
    found, before = set(), ""
    for word in words:
        if word == "(" and before in _BEFORE_A_TABLE:
            # In `FROM (kernels JOIN steps ...)` the next word stands where a table may stand.
            continue
        if before in _BEFORE_A_TABLE:
            found.add(_plain(word))
        before = word
    return frozenset(found)


def one_line(text: str) -> str:
    """Words of a query as they stand in a sentence, which is one line."""
    return " ".join(text.split())


def _plain(name: str) -> str:
    """A name without its quotes."""
    return name.strip('"`').replace('""', '"') if name[:1] in ('"', "`") else name
