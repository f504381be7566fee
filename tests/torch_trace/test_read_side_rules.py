# SPDX-License-Identifier: Apache-2.0
"""What starting the read side costs; tests/repository/test_architecture.py has the other rules."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

READ_SIDE = Path(__file__).parents[2] / "megatron" / "torch_trace"


def test_help_and_import_load_nothing_heavy() -> None:
    code = (
        "import sys, megatron.torch_trace, megatron.torch_trace.commands\n"
        "heavy = {'torch', 'numpy', 'polars', 'msgspec', 'rich', 'isal', 'jinja2'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_dataclasses_are_those_that_are_made_quickly() -> None:
    slow = re.compile(r"^from dataclasses import .*\bdataclass\b", re.M)
    files = [file for file in READ_SIDE.rglob("*.py") if file.name != "records.py"]
    assert [file.name for file in files if slow.search(file.read_text())] == []
