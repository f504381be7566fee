# SPDX-License-Identifier: Apache-2.0
"""The lines that docs/other-loops.md tells users to write, as a module of theirs."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

PAGE = Path(__file__).resolve().parents[2] / "docs" / "other-loops.md"


def code(heading: str, page: str | None = None) -> str:
    """The first Python under a heading that begins so."""
    section = (page or PAGE.read_text()).partition(f"\n## {heading}")[2].partition("\n## ")[0]
    found = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    if found is None:
        raise LookupError(f"{heading}: no Python under this heading")
    return found[1]


def imported(heading: str, name: str) -> ModuleType:
    """The same, imported under the name that the page gives the file."""
    module = ModuleType(name)
    sys.modules[name] = module
    exec(compile(code(heading), str(PAGE), "exec"), vars(module))
    return module
