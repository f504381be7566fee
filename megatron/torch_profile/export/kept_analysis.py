# SPDX-License-Identifier: Apache-2.0
"""The analysis of a rank's own trace, kept beside it for `torch-trace analyze`.

    python -m megatron.torch_profile.export.kept_analysis TRACE

A program of its own, with the least priority: training lends it no memory and imports none of its
libraries. Says on stdout, as JSON, what went wrong if so.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from megatron.torch_profile.export.own_process import answer_training, be_killed_first


def main(argv: list[str]) -> None:
    """Analyse one trace and keep the result."""
    answer_training(lambda answer: _keep(Path(argv[0]), answer))


def _keep(trace: Path, answer: dict[str, Any]) -> None:
    from megatron.torch_trace.analysis.run.kept_analyses import keep

    kept = keep([trace], jobs=1)
    if kept.skipped:
        answer["error"] = kept.skipped[0].reason


if __name__ == "__main__":
    be_killed_first()
    main(sys.argv[1:])
