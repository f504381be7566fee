# SPDX-License-Identifier: Apache-2.0
"""The document of `torch-trace analyze --json`, as who reads it has it."""

from __future__ import annotations

from typing import Any

import msgspec

from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.report.json_document import pieces


def document(analysis: Analysis, *, tables: bool = True) -> dict[str, Any]:
    """See `pieces`; NaN would be no JSON."""
    found: dict[str, Any] = msgspec.json.decode("".join(pieces(analysis, tables=tables)))
    return found
