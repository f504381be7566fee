# SPDX-License-Identifier: Apache-2.0
"""Lines of the user's log: a slug in front, which scripts and documents hold on to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from megatron.torch_profile.log import Slug, say, warn

ROOT = Path(__file__).parents[2]
LISTED = re.compile(r"^\| `([a-z-]+)` \| (.+) \|$", re.MULTILINE)


def test_every_line_begins_with_its_slug_and_a_warning_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    say(Slug.PLAN, "%s", "ranks: 0\niterations: 3")
    warn(Slug.EXPORT_FAILED, "rank %d could not write the %s", 3, "trace")
    assert capsys.readouterr().out.splitlines() == [
        "[torch-profile plan] ranks: 0",
        "[torch-profile plan] iterations: 3",
        "[torch-profile export-failed] warning: rank 3 could not write the trace",
    ]


def test_slugs_are_unique_words_that_grep_takes_as_they_are() -> None:
    slugs = [slug.value for slug in Slug.__members__.values()]
    assert len({*slugs}) == len(slugs)
    assert [slug for slug in slugs if not re.fullmatch(r"[a-z]+(-[a-z]+)*", slug)] == []


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
