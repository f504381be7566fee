# SPDX-License-Identifier: Apache-2.0
"""One thing worth knowing of a case."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing worth knowing of a case.

    Args:
        code: its name, which stays.
        sentence: what it is, and what to do.
        source: `file.py, line 12`; empty where nothing tells.
    """

    code: str
    sentence: str
    source: str = ""
