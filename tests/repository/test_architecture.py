# SPDX-License-Identifier: Apache-2.0
"""The order of modules: imports point one way, between the halves and inside capture."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CAPTURE = ROOT / "megatron" / "torch_profile"
READ_SIDE = ROOT / "megatron" / "torch_trace"


def imports(file: Path, *, top_level: bool) -> set[str]:
    """Absolute names of the modules that a file imports."""
    tree = ast.parse(file.read_text())
    nodes = tree.body if top_level else list(ast.walk(tree))
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def test_megatron_stays_a_namespace_package() -> None:
    assert not (ROOT / "megatron" / "__init__.py").exists()


def test_the_read_side_knows_neither_torch_nor_megatron_nor_capture() -> None:
    foreign = ("torch", "megatron.core", "megatron.training", "megatron.torch_profile")
    known = {
        file.relative_to(ROOT): names
        for file in READ_SIDE.rglob("*.py")
        if (names := {n for n in imports(file, top_level=False) if _is_of(n, foreign)})
    }
    assert known == {}


def _is_of(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == one or name.startswith(f"{one}.") for one in packages)


def test_only_kineto_and_ranges_know_torchs_profiler() -> None:
    profilers = ("torch.profiler", "torch.autograd.profiler")
    users = {
        file.stem
        for file in CAPTURE.rglob("*.py")
        if any(name.startswith(profilers) for name in imports(file, top_level=False))
    }
    assert users == {"kineto", "ranges"}


@pytest.mark.parametrize(
    ("package", "heavy"),
    [
        ("megatron.torch_trace", ("torch", "megatron.core", "polars", "numpy")),
        ("megatron.torch_trace.commands", ("torch", "megatron.core", "polars", "numpy")),
        ("megatron.torch_profile", ("torch", "megatron.core", "polars", "numpy")),
        # Programs beside training import it to compress one file.
        ("megatron.torch_profile", ("megatron.torch_profile.plan.capture_plan",)),
    ],
)
def test_importing_is_light(package: str, heavy: tuple[str, ...]) -> None:
    code = f"import sys, {package}; print([m for m in {heavy!r} if m in sys.modules])"
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == "[]"


def test_files_are_short_and_named_after_what_they_hold() -> None:
    # One test for all: a test for each of a thousand files takes three times as long.
    folders = (CAPTURE, READ_SIDE, *(ROOT / n for n in ("benchmarks", "scripts", "tests")))
    texts = {
        file.relative_to(ROOT): file.read_text() for one in folders for file in one.rglob("*.py")
    }
    assert [str(file) for file, text in texts.items() if len(text.splitlines()) > 300] == []
    assert {file.stem for file in texts} & {"utils", "helpers", "common", "misc"} == set()
    license_line = "# SPDX-License-Identifier: Apache-2.0\n"
    assert [str(file) for file, text in texts.items() if not text.startswith(license_line)] == []
    assert len(texts) > 800
