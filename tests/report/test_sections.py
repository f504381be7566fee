# SPDX-License-Identifier: Apache-2.0
"""A section is written once, stands in one list, and is what terminal, page and Markdown show."""

from __future__ import annotations

import re
from dataclasses import replace
from pkgutil import iter_modules

from many_ranks import of_many
from page_reading import read

from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.report import contents, sections
from megatron.torch_trace.report.html import render_html
from megatron.torch_trace.report.markdown import render_markdown
from megatron.torch_trace.report.section import Section, Subject
from megatron.torch_trace.report.table import render, render_section
from megatron.torch_trace.report.tables import Cell, Column, Medium, Row, Table
from megatron.torch_trace.report.text import render as render_text

PARTS = {"stage_work", "loop_thread"}
"""Modules that hold a part of a section, because it is long."""


def test_every_module_of_a_section_stands_in_the_contents(tp2pp2: Analysis) -> None:
    assert {one.name for one in iter_modules(sections.__path__)} - PARTS == {
        make.__module__.rsplit(".", 1)[1] for make, _ in contents.CONTENTS
    }
    found = contents.sections(Subject(tp2pp2), Medium.PAGE)
    assert len({one.name for one in found}) == len(found) == len(contents.CONTENTS)


def test_terminal_page_and_markdown_show_the_same_tables(spans: Analysis) -> None:
    page = read(render_html(spans))
    text, markdown = render_text(spans), render_markdown(spans)
    every = 0
    for one in contents.sections(Subject(spans), Medium.ALL):
        for table in one.tables:
            if table and table.rows and table.media is Medium.ALL:
                every += 1
                assert table.name in page.tables
                assert (table.brief or table.caption.upper()) in text
                assert re.sub(r"([#|])", r"\\\1", table.caption) in markdown
    assert every > 10


def table(**changes: object) -> Table:
    columns = (
        Column("name", number=False, cut=True),
        Column("class", number=False, spare=True),
        Column("only ms", brief=None),
        Column("", brief="busy"),
    )
    cells = (Cell("layers"), Cell("Layer"), Cell("1.5", sort=1.5), Cell("10 %"))
    rows = (Row(cells), Row((Cell("idle"), *cells[1:]), spare=True))
    return replace(Table("one", "One", columns, rows), **changes)  # type: ignore[arg-type]


def test_a_terminal_leaves_out_spare_rows_and_says_how_many() -> None:
    assert render(table(each="rank", told="{} idle."), 100) == [
        "ONE",
        "  name    class  busy",
        "  layers  Layer  10 %",
        "  1 more rank idle.",
    ]


def test_a_spare_column_is_left_out_where_the_table_would_not_fit() -> None:
    long = Row((Cell("x" * 90), Cell("Layer"), Cell(""), Cell("10 %")))
    assert "class" not in render(table(), 80)[1]
    assert "class" in render(table(), 100)[1]
    assert "class" not in render(table(rows=(long,)), 100)[1]


def test_a_page_leaves_out_columns_that_only_a_terminal_has() -> None:
    (shown,) = Section("one", "One", tables=[table(), None]).shown(Medium.PAGE)
    assert [column.title for column in shown.columns] == ["name", "class", "only ms"]
    assert [len(row.cells) for row in shown.rows] == [3, 3]


def test_a_table_for_other_media_is_not_shown() -> None:
    one = Section("one", "One", tables=[table(media=Medium.WRITTEN)], said="Said.\nMore.")
    assert render_section(one, 80) == ["  Said.", "  More."]


def test_columns_in_which_there_is_nothing_are_left_out() -> None:
    rows = (Row((Cell("a"), Cell("-", sort=0), Cell("unknown"), Cell("2", sort=2))),)
    columns = tuple(map(Column, ("name", "zero", "lost", "two")))
    found = Table("one", "One", columns, rows).without_empty(1)
    assert [column.title for column in found.columns] == ["name", "lost", "two"]


def test_of_many_ranks_a_stage_is_one_line_on_a_terminal(tp2pp2: Analysis) -> None:
    pipeline = render_text(of_many(tp2pp2, 64)).split("\nPIPELINE")[1].split("\n\n")[0]
    assert [line.split()[:4] for line in pipeline.splitlines()[2:]] == [
        [str(n), "of", "8", f"{8 * n}-{8 * n + 7}"] for n in range(8)
    ]
