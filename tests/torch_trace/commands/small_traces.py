# SPDX-License-Identifier: Apache-2.0
"""A trace of one launch with its kernel, and one that strict parsers refuse."""

from __future__ import annotations

from trace_builder import event, kernel, launch, text

CLEAN = text(launch(1_000, 2_000, 1), kernel("k", 2_000, 3_000, 1))
BROKEN = text(event(r"C:\Users"), event("x"))
