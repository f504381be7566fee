# SPDX-License-Identifier: Apache-2.0
"""`torch-trace report`: what it writes, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_builder import header, kernel, launch, op, step, text, write

from megatron.torch_trace.commands.report import command
from megatron.torch_trace.errors import DamagedTraceError, UsageError


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A step with one launch and its kernel, whose name holds markup."""
    name = "<b>kernel</b>"
    events = step(3, 0, 100_000), launch(5_000, 7_000, 1), kernel(name, 10_000, 60_000, 1)
    return write(tmp_path / "rank-0.json", text(*events, header=header()))


def run(*arguments: object) -> None:
    command.main([str(one) for one in arguments], standalone_mode=False)


def test_it_writes_a_page_and_says_so(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    run(trace, "-o", page)
    assert capsys.readouterr().err.startswith(f"Wrote {page}: ")
    assert page.read_text().startswith("<!doctype html>")
    assert "<b>kernel</b>" not in page.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "rank-0.json"]


def test_a_page_is_not_refused_for_want_of_the_room_of_a_trace(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("usage", (), {"free": 1_000_000})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    run(trace, "-o", tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < 1_000_000


def test_without_a_name_it_is_report_html_here(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(trace)
    assert (tmp_path / "report.html").is_file()


def test_a_page_that_exists_is_replaced_with_force_only(trace: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        run(trace, "-o", page)
    assert page.read_text() == "mine"
    run(trace, "-o", page, "--force")
    assert page.read_text() != "mine"


def test_damage_is_said_after_the_page_is_written(trace: Path, tmp_path: Path) -> None:
    trace.write_text(trace.read_text().rstrip()[:-1])
    page = tmp_path / "page.html"
    with pytest.raises(DamagedTraceError, match="damaged"):
        run(trace, "-o", page)
    assert "What the reader mended or lost" in page.read_text()


def test_what_cannot_be_analysed_leaves_no_page(tmp_path: Path) -> None:
    (tmp_path / "no-trace.json").write_text("{}")
    with pytest.raises(UsageError):
        run(tmp_path / "no-trace.json", "-o", tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_a_name_that_ends_in_md_gets_the_tables_of_the_page_as_markdown(
    trace: Path, tmp_path: Path
) -> None:
    begin, rest = trace.read_text().split("[\n", maxsplit=1)
    trace.write_text(f"{begin}[\n{op('a|<b>', 4_000, 13_000)},\n{rest}")
    run(trace, "-o", tmp_path / "report.md")
    lines = (tmp_path / "report.md").read_text().splitlines()
    assert lines[0] == "# Where the time went"
    assert lines[2].startswith("rank 0; ")
    assert "## GPU work" in lines
    at = lines.index("**Kernels, of one rank**")
    assert lines[at + 2] == "| kernel | family | calls | ms | of window | mean us | longest us |"
    assert lines[at + 3] == "| --- | --- | ---: | ---: | ---: | ---: | ---: |"
    assert lines[at + 4].startswith("| kernel | other | 1 | ")
    # A name is text: it ends no cell and is no markup.
    assert any(line.startswith(r"| a\|\<b\> | 1 | ") for line in lines)
