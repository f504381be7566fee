# SPDX-License-Identifier: Apache-2.0
"""Nothing is logged without a slug, and every slug is explained to users."""

from __future__ import annotations

import re
from pathlib import Path

from megatron.torch_profile.log import Slug

ROOT = Path(__file__).parents[2]
LISTED = re.compile(r"^\| `([a-z-]+)` \| (.+) \|$", re.MULTILINE)


def test_every_slug_is_explained_in_the_flags_and_no_other() -> None:
    section = (ROOT / "docs" / "flags.md").read_text().partition("\n## Log lines\n")[2]
    assert [slug for slug, _ in LISTED.findall(section)] == [slug.value for slug in Slug]


def test_every_slug_is_said_somewhere_and_nothing_is_said_without_one() -> None:
    package = ROOT / "megatron" / "torch_profile"
    files = {path: path.read_text() for path in package.rglob("*.py")}
    log = files.pop(package / "log.py")
    assert "logger" in log
    assert [path for path, text in files.items() if "import logger" in text] == []
    text = "".join(files.values())
    assert [slug for slug in Slug if f"Slug.{slug.name}" not in text] == []


def test_documents_quote_lines_with_a_slug_that_there_is() -> None:
    documents = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    quoted = {
        slug
        for path in documents
        for slug in re.findall(r"\[torch-profile([^\]\n]*)\]", path.read_text())
    }
    known = {f" {slug.value}" for slug in Slug} | {" SLUG"}
    assert quoted - known == set()


def test_every_slug_of_something_wrong_is_found_among_the_faults() -> None:
    rows = re.findall(r"^\| (`[^|]*) \|", (ROOT / "docs" / "faults.md").read_text(), re.MULTILINE)
    named = {slug for row in rows for slug in re.findall(r"`([a-z-]+)`(?=:|,| )", row)}
    quiet = {"plan", "cpu", "module-spans", "iteration-times", "memory-snapshot", "artifact"}
    quiet |= {"export-begun", "export-progress", "export-done", "analysis-waits", "summary-waits"}
    assert {slug.value for slug in Slug} - named == quiet
