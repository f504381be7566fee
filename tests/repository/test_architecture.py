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


@pytest.mark.parametrize("file", sorted(READ_SIDE.rglob("*.py")), ids=lambda p: p.name)
def test_the_read_side_knows_neither_torch_nor_megatron_nor_capture(file: Path) -> None:
    foreign = ("torch", "megatron.core", "megatron.training", "megatron.torch_profile")
    for name in imports(file, top_level=False):
        assert not any(name == f or name.startswith(f"{f}.") for f in foreign), name


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


@pytest.mark.parametrize(
    "file",
    sorted(
        file
        for folder in (CAPTURE, READ_SIDE, *(ROOT / n for n in ("benchmarks", "scripts", "tests")))
        for file in folder.rglob("*.py")
    ),
    ids=lambda p: p.name,
)
def test_files_are_short_and_named_after_what_they_hold(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= 300
    assert file.stem not in ("utils", "helpers", "common", "misc")
    assert file.read_text().startswith("# SPDX-License-Identifier: Apache-2.0\n")
