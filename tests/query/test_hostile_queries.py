# SPDX-License-Identifier: Apache-2.0
"""Whatever a query says, it reads the tables of the traces and nothing else."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from command_line import last_line, run
from hypothesis import example, given, settings
from hypothesis import strategies as st
from trace_builder import kernel, launch, step, write_rank

from megatron.torch_trace import sql
from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.parquet import export
from megatron.torch_trace.query.words import read

SECRET = "only-in-the-file"


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    trace = write_rank(
        folder / "rank-0.json", step(1, 0, 90_000), launch(1_000, 2_000, 1),
        kernel("gemm", 3_000, 4_000, 1), rank=0,
    )  # fmt: skip
    export(trace, folder / "tables", jobs=1)
    (folder / "secret.csv").write_text(f"a\n{SECRET}\n")
    pl.DataFrame({"a": [SECRET]}).write_parquet(folder / "secret.parquet")
    return folder / "tables"


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("", "the query is empty; write one, such as 'select * from ranks'."),
        (" -- x\n;", "the query is empty; write one, such as 'select * from ranks'."),
        ("create table t as select * from ranks", "CREATE: is no query; begin with SELECT or WITH"),
        ("DROP TABLE ranks", "DROP: is no query; begin with SELECT or WITH"),
        ("/* select */ delete from ranks", "DELETE: is no query; begin with SELECT or WITH"),
        ("(drop table ranks)", "DROP: is no query; begin with SELECT or WITH"),
        ("show tables", "SHOW: is no query; begin with SELECT or WITH"),
        ("explain select * from ranks", "EXPLAIN: is no query; begin with SELECT or WITH"),
        ("copy ranks to 'x'", "COPY: is no query; begin with SELECT or WITH"),
        ("select 1; drop table ranks", "the query has a ; in the middle; ask one query at a time."),
        ("select * from read_csv('x.csv')", "read_csv: would read a file, and a query reads only"),
        ("select * from READ_PARQUET ( 'x' )", "read_parquet: would read a file"),
        ("select * from \"read_csv\"('x.csv')", "read_csv: would read a file"),
        ("select * from read_csv/**/('x')", "read_csv: would read a file"),
        ("select * from read_csv -- '\n('x')", "read_csv: would read a file"),
        ("select 1 where 1 in (select a from read_json('x'))", "read_json: would read a file"),
        ("with q as (select * from read_ipc('x')) select * from q", "read_ipc: would read a file"),
        ("select '' || E'a' from ranks", "E'a': write a text as '...', with a blank before it."),
        ("select $$'$$ from ranks", "the query has the character '$'; write texts in single"),
        ("select 'a from ranks", "the query has a ' without its end; close the quotes."),
        ('select "a from ranks', 'the query has a " without its end; close the quotes.'),
        ("select /* a from ranks", "the query has a /* without its */; close the comment."),
        ("select /* /* */ */ 1", "the query has a /* without its */; close the comment."),
        ("select nam from kernels", "nam: no such column in kernels; did you mean name?"),
        ("select k.dur_ns from kernels k", "dur_ns: no such column in kernels; did you mean dur"),
        ("select * from kernel", "kernel: no such table; did you mean kernels?"),
        ("select * from 'x.csv'", "x.csv: no such table; there are ranks, steps, kernels"),
        ("select foo(rank) from ranks", "foo: no such function in polars' SQL; use another one."),
        ("select [name] from kernels", "the query cannot be answered: array element name is not"),
        ("select cast(name as int) from kernels", "the query cannot be answered: conversion from"),
        ("select * from ranks where", "the query cannot be answered: sql parser error: Expected:"),
        ("select rank, rank from ranks", "the query cannot be answered: projections contained"),
        ("select rank into x from ranks", "the query cannot be answered: `SELECT INTO` clause"),
        ("select " + "+".join(["1"] * 600), "the query has 1,200 words and signs; write one with"),
        ("select '" + "a" * 20_000 + "'", "the query has 20,009 characters; write one with at"),
    ],
)
def test_a_query_that_is_wrong_or_would_do_more_is_one_sentence(
    tables: Path, query: str, sentence: str
) -> None:
    done = run("sql", tables, query)
    assert (done.returncode, done.stdout) == (2, b"")
    assert last_line(done.stderr).startswith(f"torch-trace: {sentence}")
    assert len(done.stderr.splitlines()) == 1


def test_quotes_and_comments_end_where_polars_ends_them() -> None:
    """Else a query could show us a text, and polars a function that reads a file."""
    for text in (r"a\ ", "a\\", "a''b", "--", "/*", "`", '"', "a\nb"):
        query = f"select '{text}' as x, \"x\" from (select 1 as x)"
        assert read(query).text == query
        assert pl.SQLContext(eager=True).execute(f"select '{text}' as x").item() == (
            text.replace("''", "'")
        )


PIECES = st.sampled_from(
    [
        *("select", "with", "from", "join", "where", "as", "in", "*", ",", "(", ")", ";", "'"),
        *('"', "`", "\\", "--", "/*", "*/", "\n", "$$", "E", "X", "q", "ranks", "a", "1", "="),
        *("read_csv", "read_parquet", "READ_CSV", '"read_parquet"', "drop table", "create table"),
        *("'CSV'", "('CSV')", "('PARQUET')", "union all", "lateral", "table", "insert into", "."),
    ]
)


def told(tables: Path, query: str) -> str:
    """The answer, or the sentence instead."""
    query = query.replace("CSV", str(tables.parent / "secret.csv"))
    query = query.replace("PARQUET", str(tables.parent / "secret.parquet"))
    try:
        return str(sql(tables, query).rows())
    except UsageError as error:
        return str(error)


@settings(max_examples=100, deadline=None)
@example(pieces=["'", "\n", "'"], blank=" ")
@example(pieces=['"', "\n", '"'], blank="")
@given(pieces=st.lists(PIECES, max_size=14), blank=st.sampled_from([" ", ""]))
def test_no_words_in_any_order_read_another_file(
    tables: Path, pieces: list[str], blank: str
) -> None:
    before = sorted(tables.rglob("*"))
    for begin in ("", "select * from "):
        answer = told(tables, begin + blank.join(pieces))
        assert SECRET not in answer
        assert "\n" not in answer
    assert sorted(tables.rglob("*")) == before


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_has_an_answer_or_is_a_sentence(tables: Path, text: str) -> None:
    assert told(tables, text)
