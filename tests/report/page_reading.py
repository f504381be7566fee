# SPDX-License-Identifier: Apache-2.0
"""A page taken apart with the standard library: sections, tables, scripts, marked moments."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = frozenset({"meta", "link", "input", "br", "img", "path"})


@dataclass
class Page(HTMLParser):
    """What a browser finds in the page.

    Args:
        sections: ids, in order.
        tables: id -> rows of the texts of their cells, the heading first.
        scripts: the text of each script element.
        marks: attributes of every element that can be shown in the timeline.
        tags: every element's name.
        ids: every element's id.
        links: what `src` and `href` name.
        titles: every `title` attribute.
        pieces: all text outside of scripts and styles.
    """

    sections: list[str] = field(default_factory=list)
    tables: dict[str, list[list[str]]] = field(default_factory=dict)
    scripts: list[str] = field(default_factory=list)
    marks: list[dict[str, str]] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    titles: list[str] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._open: list[str] = []
        self._table: str | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        own = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        self.ids += [own["id"]] if "id" in own else []
        self.links += [own[name] for name in ("src", "href") if name in own]
        self.titles += [own["title"]] if "title" in own else []
        if "data-start" in own:
            self.marks.append(own)
        if tag == "section":
            self.sections.append(own["id"])
        if tag == "script":
            self.scripts.append("")
        if tag == "table":
            self._table = own.get("id")
            if self._table:
                self.tables[self._table] = []
        if self._table and tag == "tr":
            self.tables[self._table].append([])
        if self._table and tag in ("td", "th"):
            self.tables[self._table][-1].append("")
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        assert self._open.pop() == tag, f"</{tag}> closes nothing"
        if tag == "table":
            self._table = None

    def handle_data(self, data: str) -> None:
        inside = self._open[-1] if self._open else ""
        if inside == "script":
            self.scripts[-1] += data
        elif inside != "style":
            self.pieces.append(data)
            if self._table and {"td", "th"} & set(self._open):
                rows = self.tables[self._table]
                rows[-1][-1] = (rows[-1][-1] + data).strip()


def read(html: str) -> Page:
    """The page; every element in it is closed where it should be."""
    page = Page()
    page.feed(html)
    page.close()
    assert page._open == []
    return page
