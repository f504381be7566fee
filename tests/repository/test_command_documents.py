# SPDX-License-Identifier: Apache-2.0
"""The pages about `torch-trace` name every option, and show what the commands really print."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from command_line import run

from megatron.torch_trace.analysis.findings import modules
from megatron.torch_trace.commands import SUBCOMMANDS, cli

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {"trigger": "monitoring", "status": "monitoring", "mcp": "agents"}
"""Of commands that share one."""
DOCUMENTS = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md"), *(ROOT / "tests").rglob("*.md")])
SAMPLES = ROOT / "tests" / "data"


def options(name: str) -> list[list[str]]:
    """Of a command's options the spellings of each: `[["-o", "--output"], ["--force"], ...]`."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return [
        [*option.opts, *option.secondary_opts]
        for option in command.params
        if isinstance(option, click.Option)
    ]


def page(name: str) -> str:
    """What is written about a command: its own page, or what tools.md says of all and of it."""
    own = DOCS / f"{PAGES.get(name, name)}.md"
    if own.exists():
        return own.read_text()
    general, *sections = re.split(r"^## ", (DOCS / "tools.md").read_text(), flags=re.MULTILINE)
    titles = [section.splitlines()[0] for section in sections]
    assert name in titles
    of_others = {*SUBCOMMANDS} - {name}
    return general + "".join(s for t, s in zip(titles, sections, strict=True) if t not in of_others)


def command_lines(text: str) -> list[list[str]]:
    """Words behind `torch-trace` in lines of code and between backticks, up to a comment."""
    code = re.findall(r"^ {4}.*?\btorch-trace +([a-z]\w+(?: +[^#|>\n]*)?)", text, re.MULTILINE)
    prose = re.findall(r"`torch-trace ([a-z]\w+[^`|>]*)`", text)
    return [line.split() for line in [*code, *prose]]


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_option_of_a_command_is_on_its_page(name: str) -> None:
    text = page(name)
    assert [
        spellings
        for spellings in options(name)
        if not any(re.search(rf"(?<![\w-]){re.escape(one)}(?![\w-])", text) for one in spellings)
    ] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_command_and_option_in_a_document_exists(document: Path) -> None:
    for name, *words in command_lines(document.read_text()):
        assert name in SUBCOMMANDS
        known = {spelling for option in options(name) for spelling in option} | {"-h", "--help"}
        named = {word.partition("=")[0] for word in words if re.match("--?[a-z]", word)}
        assert named <= known, (name, named - known)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_to_sections_lead_to_a_heading(document: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", document.read_text()):
        text = (document.parent / target if target else document).read_text()
        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        slugs = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
        assert anchor in slugs, f"{target}#{anchor}"


def test_every_finding_has_its_row() -> None:
    codes = {module.SLUG for module in modules()}
    assert len(codes) > 20
    rows = "\n".join(line for line in page("analyze").splitlines() if line.startswith("| `"))
    assert {code for code in codes if not re.search(rf"`{code}(_<\w+>)?`", rows)} == set()


def test_a_finding_is_one_module_that_bears_its_slug() -> None:
    for module in modules():
        assert module.__name__.rpartition(".")[2] == module.SLUG


@pytest.mark.parametrize(
    ("document", "first", "behind", "command"),
    [
        ("README.md", "457 ms an iteration: compute", "...", "analyze analysis/dp4-rank2-slow"),
        ("docs/analyze.md", "457 ms an iteration", "This page", "analyze analysis/dp4-rank2-slow"),
        ("docs/analyze.md", "MODULES (ms", "The products run", "analyze pp2-recompute-spans"),
        ("docs/whatif.md", "2 ranks; recorded", "...", "whatif pp2-recompute-spans"),
        ("docs/memory.md", "Peak: 598 MB", "- **In use**", "memory memory-snapshot.pickle.gz"),
    ],
)
def test_what_a_command_prints_of_a_sample_is_what_a_document_shows(
    document: str, first: str, behind: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    text = (ROOT / document).read_text()
    shown = text[text.index(first) : text.index(behind, text.index(first))]
    name, sample = command.split()
    options = ["--no-partials"] if name == "analyze" else []
    ended = run(name, *options, SAMPLES / sample)
    assert ended.returncode == 0
    lines = [line.strip() for line in ended.stdout.decode().splitlines()]
    assert len(shown.splitlines()) > 2
    assert [s for s in map(str.strip, shown.splitlines()) if s not in lines] == []
