# SPDX-License-Identifier: Apache-2.0
"""Names that would move a terminal's cursor, or turn text around, are written out everywhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import output

BASE = Path(__file__).parents[1] / "data" / "faults" / "09-control-characters.json"
NAMES = {
    "\x1b[31mred\x07": "\\x1b[31mred\\x07",
    "line\nbreak\ttab\r": "line\\nbreak\\ttab\\r",
    "turn\u202eed\u2066": "turn\\u202eed\\u2066",
    "csi\x9b2J": "csi\\x9b2J",
    "[bold]<script>alert(1)</script>": "[bold]<script>alert(1)</script>",
}
RAW = "\x1b\x07\x9b\u202e\u2066"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    document = json.loads(BASE.read_text())
    names = list(NAMES)
    number = 0
    for event in document["traceEvents"]:
        if event.get("cat") in ("cpu_op", "kernel"):
            event["name"] = names[number % len(names)]
            number += 1
    path = tmp_path / "rank-0.json"
    path.write_text(json.dumps(document))
    return path


def test_a_terminal_sees_no_control_characters(trace: Path) -> None:
    for command in (["info"], ["check"], ["analyze", "--top", "20"], ["compare", trace]):
        said = output(*command, trace)
        assert not set(said) & set(RAW), command
    assert "\\x1b[31mred\\x07" in output("analyze", "--top", "20", trace)


def test_pages_hold_no_control_characters_and_show_what_there_was(
    trace: Path, tmp_path: Path
) -> None:
    page, comparison = tmp_path / "report.html", tmp_path / "compare.html"
    output("report", trace, "-o", page)
    output("compare", trace, trace, "-o", comparison)
    for file in (page, comparison):
        text = file.read_text(encoding="utf-8")
        assert not set(text) & set(RAW), file
    text = page.read_text(encoding="utf-8")
    for shown in ("\\x1b[31mred\\x07", "line\\nbreak\\ttab\\r", "turn\\u202eed\\u2066"):
        assert shown in text
    assert "<script>alert(1)" not in text


def test_json_keeps_names_as_they_are(trace: Path) -> None:
    kernels = json.loads(output("analyze", "--json", trace))["ranks"][0]["kernels"]
    assert {kernel["name"] for kernel in kernels} == set(NAMES)


def test_the_fault_of_issue_14_shows_no_escape(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    output("report", BASE, "-o", page)
    assert not set(page.read_text(encoding="utf-8")) & set(RAW)
    assert "op\\x1b]0;title\\x07" in output("analyze", BASE)


def test_a_name_of_a_million_characters_fills_no_page(tmp_path: Path) -> None:
    document = json.loads(BASE.read_text())
    for number, event in enumerate(document["traceEvents"]):
        if event.get("cat") == "cpu_op":
            event["name"] = "x" * 1_000_000 + "ab"[number % 2]
    trace, page = tmp_path / "rank-0.json", tmp_path / "report.html"
    trace.write_text(json.dumps(document))
    output("report", trace, "-o", page)
    assert page.stat().st_size < 300_000
    assert max(map(len, output("analyze", trace).splitlines())) < 400
    operators = json.loads(output("analyze", "--json", trace))["ranks"][0]["operators"]
    assert sorted(len(one["operator"]) for one in operators) == [10_000, 10_000]
