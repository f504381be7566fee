# SPDX-License-Identifier: Apache-2.0
"""The documents as a site: every page is in its order, every link leads somewhere."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("zensical") is None, reason="the extra [docs] is not installed"
)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the site is made of, to be changed."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("docs", "scripts", "megatron"):
        shutil.copytree(ROOT / name, copy / name)
    for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "mkdocs.yml"):
        shutil.copyfile(ROOT / name, copy / name)
    return copy


def build(checkout: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, checkout / "scripts" / "build_site.py", checkout / "site"],
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_the_site_has_a_page_for_each_document_and_one_with_all_flags(checkout: Path) -> None:
    done = build(checkout)
    assert (done.returncode, done.stderr) == (0, "")
    pages = {page.stem for page in (checkout / "site").glob("*.html")}
    documents = {page.stem for page in (ROOT / "docs").glob("*.md")}
    assert pages == documents | {"index", "contributing", "security", "all-flags", "404"}
    flags = (checkout / "site" / "all-flags.html").read_text()
    assert flags.count("<h2") > 40
    assert "--torch-profile-memory-snapshot-entries" in flags
    # Nothing is fetched from elsewhere, so that it can be read on a closed cluster.
    index = (checkout / "site" / "index.html").read_text()
    assert "fonts.googleapis" not in index
    assert "cdn" not in index.lower()


def test_a_link_that_leads_nowhere_ends_the_build(checkout: Path) -> None:
    wrong = {"[x](nope.md)": "page does not exist", "[y](analyze.md#nope)": "anchor does not exist"}
    page = checkout / "docs" / "2am.md"
    text = page.read_text()
    page.write_text("\n".join([text, *wrong, ""]))
    try:
        done = build(checkout)
    finally:
        page.write_text(text)
    assert done.returncode == 1
    said = [one for pair in wrong.items() for one in pair]
    assert [one for one in said if one not in done.stderr] == []


def test_a_page_without_a_place_in_the_order_is_named(checkout: Path) -> None:
    page = checkout / "docs" / "new.md"
    page.write_text("# New\n")
    try:
        done = build(checkout)
    finally:
        page.unlink()
    assert (done.returncode, done.stderr) == (1, "mkdocs.yml: nav lacks new.md\n")
