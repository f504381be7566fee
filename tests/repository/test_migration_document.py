# SPDX-License-Identifier: Apache-2.0
"""docs/migration.md is right about the Megatron that is installed."""

from __future__ import annotations

import ast
import re
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "migration.md").read_text()
CONFIG = Path(sysconfig.get_path("purelib"), "megatron", "training", "config", "common_config.py")

pytestmark = pytest.mark.skipif(not CONFIG.exists(), reason="Megatron 0.17 or newer is not there")


def profiling_fields() -> dict[str, str]:
    """Fields of Megatron's configuration of profiling, each with its default as text."""
    tree = ast.parse(CONFIG.read_text())
    (config,) = (
        node
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name == "ProfilingConfig"
    )
    return {
        ast.unparse(field.target): ast.unparse(field.value)
        for field in config.body
        if isinstance(field, ast.AnnAssign) and field.value
    }


def test_megatrons_flags_of_the_page_are_its_flags() -> None:
    table = PAGE[PAGE.index("| Megatron's own |") : PAGE.index("## From the flags of the okoge")]
    column = "\n".join(re.findall(r"^\| (`.*?) \| ", table, re.MULTILINE))
    named = set(re.findall(r"--([a-z-]+)", column)) - {"profile", "tensorboard-dir"}
    fields = {field.replace("_", "-") for field in profiling_fields()}
    assert named <= fields
    # `--profile` itself, and what nsys alone reads, have no counterpart.
    assert fields - named == {"use-nsys-profiler", "record-shapes"}


def test_megatrons_defaults_are_those_that_the_page_says() -> None:
    fields = profiling_fields()
    start, end = fields["profile_step_start"], fields["profile_step_end"]
    assert (
        f"`--profile-step-start {start} --profile-step-end {end}` (these are the defaults)" in PAGE
    )
    assert f"`--torch-profile-iterations {start}-{int(end) - 1}`" in PAGE
    assert fields["profile_ranks"] == "field(default_factory=lambda: [])"  # all ranks
    assert "in Megatron all ranks" in PAGE
