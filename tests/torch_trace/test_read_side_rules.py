# SPDX-License-Identifier: Apache-2.0
"""What starting the read side costs; tests/repository/test_architecture.py has the other rules."""

from __future__ import annotations

import subprocess
import sys


def test_help_and_import_load_nothing_heavy() -> None:
    code = (
        "import sys, megatron.torch_trace, megatron.torch_trace.commands\n"
        "heavy = {'torch', 'numpy', 'polars', 'msgspec', 'rich', 'isal', 'jinja2'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
