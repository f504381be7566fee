# SPDX-License-Identifier: Apache-2.0
"""Rules of the code that a machine can check: who may import whom, and what starting costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import megatron.torch_trace

PACKAGE = Path(next(iter(megatron.torch_trace.__path__)))


def imported(path: Path) -> set[str]:
    """Names of all modules that a module imports, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def test_nothing_on_the_read_side_imports_the_training_side() -> None:
    for path in PACKAGE.rglob("*.py"):
        for name in imported(path):
            assert not f"{name}.".startswith(("megatron.torch_profile.", "torch.")), (path, name)


def test_help_and_import_load_nothing_heavy() -> None:
    code = (
        "import sys, megatron.torch_trace, megatron.torch_trace.commands\n"
        "heavy = {'torch', 'numpy', 'polars', 'msgspec', 'rich', 'isal', 'jinja2'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_file_is_licensed_and_has_at_most_300_lines() -> None:
    for path in PACKAGE.rglob("*.py"):
        lines = path.read_text().splitlines()
        assert lines[0] == "# SPDX-License-Identifier: Apache-2.0", path
        assert len(lines) <= 300, (path, len(lines))
