# SPDX-License-Identifier: Apache-2.0
"""Documents say what is true: every flag is described, every named file exists."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from megatron.torch_profile.config import PRESETS, TorchProfileConfig, flag_of

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def test_every_flag_has_its_row_with_its_default() -> None:
    rows = {
        match[1]: match[2]
        for match in re.finditer(
            r"^\| `(--torch-profile[\w-]*)[^`]*` \| ([^|]*) \|",
            (ROOT / "docs" / "flags.md").read_text(),
            re.MULTILINE,
        )
    }
    defaults = TorchProfileConfig()
    expected = {}
    for field in fields(TorchProfileConfig):
        value = getattr(defaults, field.name)
        shown = " ".join(value) if isinstance(value, list) else value
        if value is None or value is False:
            shown = "not set" if value is None else "off"
        else:
            shown = f"`{shown}`"
        expected[flag_of(field.name)] = shown
    assert {flag: default.strip() for flag, default in rows.items()} == expected


def test_every_preset_is_described() -> None:
    text = (ROOT / "docs" / "flags.md").read_text()
    for name, switched_on in PRESETS.items():
        row = re.search(rf"^\| `{name}` \|(.*)$", text, re.MULTILINE)
        assert row, name
        for field in switched_on:
            assert flag_of(field).removeprefix("--torch-profile") in row[1], (name, field)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_links_to_files_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_flags_in_documents_exist(document: Path) -> None:
    known = {flag_of(field.name) for field in fields(TorchProfileConfig)}
    named = set(re.findall(r"--torch-profile(?:-[a-z]+)*", document.read_text()))
    assert named <= known, named - known


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_paths_of_this_repository_exist(document: Path) -> None:
    if document.name == "CHANGELOG.md":
        return  # It tells of what has gone, too.
    named = re.findall(
        r"\b(?:tests|scripts|benchmarks|tools|examples)/[\w./-]+", document.read_text()
    )
    assert {name for name in named if not (ROOT / name.rstrip("./")).exists()} == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_partial_stands_in_names_of_files_and_flags_only(document: Path) -> None:
    """A trace is cut short and an analysis is kept; the glossary gives the reason."""
    if document.name not in {"glossary.md", "CHANGELOG.md"}:
        prose = re.sub(r"`[^`]*`|^ {4}.*$", "", document.read_text(), flags=re.MULTILINE)
        assert re.findall(r"\bpartials?\b", prose, re.IGNORECASE) == []


def test_every_file_in_the_tables_for_contributors_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    halves = [ROOT / "megatron" / "torch_profile", ROOT / "megatron" / "torch_trace"]
    rows = "\n".join(line for line in text.splitlines() if line.startswith("| "))
    for name in re.findall(r"`([\w/]+(?:\.py|/))`", rows):
        assert any((folder / name).exists() for folder in (ROOT, *halves)), name


def test_every_room_and_file_of_the_architecture_exists() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    figure = (ROOT / "docs" / "images" / "architecture.svg").read_text()
    named = set(re.findall(r"`([\w/]+\.py|megatron/[\w/]+/)`", page))
    drawn = set(re.findall(r'class="module"[^>]*>([^<]+)<', figure))
    capture, read_side = (ROOT / "megatron" / name for name in ("torch_profile", "torch_trace"))
    assert len(named) > 20
    assert len(drawn) > 10
    assert {
        name
        for name in named | drawn
        if not any((folder / name).exists() for folder in (ROOT, capture, read_side))
    } == set()


SHOWN_BY: dict[str, dict[str, list[str]]] = json.loads(
    Path(__file__).with_name("tests_of_faults.json").read_text()
)
"""By page the first cell of each row that tests show, and these tests."""


@pytest.mark.parametrize("page", SHOWN_BY)
def test_rows_that_tests_show_are_rows_of_their_page(page: str) -> None:
    rows = re.findall(r"^\| (.*?) \| ", (ROOT / page).read_text(), re.MULTILINE)
    assert len(SHOWN_BY[page]) > 40
    assert [row for row in SHOWN_BY[page] if rows.count(row) != 1] == []


def test_every_test_of_a_fault_exists() -> None:
    named = {test for rows in SHOWN_BY.values() for tests in rows.values() for test in tests}
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert {name for name in named if f"def {name}(" not in sources} == set()


def test_nine_in_ten_rows_of_faults_are_shown_by_a_test() -> None:
    """Rows of its own tables: not where to look, nor where training stops the profiler."""
    text = (ROOT / "docs" / "faults.md").read_text()
    tables = re.findall(
        r"^\| you see \| why \| what to do \|\n\|.*\n((?:\|.*\n)+)", text, re.MULTILINE
    )
    rows = [
        row.removeprefix("| ").split(" | ")[0] for table in tables for row in table.splitlines()
    ]
    assert len(rows) > 100
    unshown = [row for row in rows if row not in SHOWN_BY["docs/faults.md"]]
    assert len(unshown) <= len(rows) / 10, unshown
