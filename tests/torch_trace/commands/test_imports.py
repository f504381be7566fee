# SPDX-License-Identifier: Apache-2.0
"""Commands import what they use: the rest would take longer to import than some of them work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import sys
from megatron.torch_trace.commands import run
assert run() == 0
imported = [name for name in {unused!r} if name in sys.modules]
assert not imported, imported
"""
_PACKAGE = "megatron.torch_trace"
_DATA = Path(__file__).parents[2] / "data"


def imports_none_of(unused: tuple[str, ...], *arguments: str) -> None:
    program = _PROGRAM.format(unused=unused)
    subprocess.run(
        [sys.executable, "-c", program, *arguments], check=True, stdout=subprocess.DEVNULL
    )


def test_to_unpack_a_trace_nothing_is_imported_that_reads_events(clean: Path) -> None:
    unused = ("numpy", "msgspec", "subprocess", f"{_PACKAGE}.reader.trace")
    imports_none_of(unused, "decompress", str(clean), "-o", "-")


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_an_analysis_without_gains_imports_no_graphs_and_nothing_of_memory(form: list[str]) -> None:
    unused = (
        "polars",
        f"{_PACKAGE}.analysis.replay.change",
        f"{_PACKAGE}.analysis.run.gains",
        f"{_PACKAGE}.allocator.answer",
        f"{_PACKAGE}.allocator.purpose",
        f"{_PACKAGE}.report.figures.schedule",
    )
    imports_none_of(unused, "analyze", str(_DATA / "dp4-slowed"), "--no-gains", *form)
