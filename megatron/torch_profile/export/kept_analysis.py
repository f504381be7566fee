# SPDX-License-Identifier: Apache-2.0
"""The analysis of a rank's own trace, kept beside it for `torch-trace analyze`.

    python -m megatron.torch_profile.export.kept_analysis TRACE

A program of its own, with the least priority: training lends it no memory and imports none of its
libraries. Says on stdout, as JSON, what went wrong if so.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from megatron.torch_profile.export.own_process import be_killed_first, end_with_parent
from megatron.torch_trace.errors import TorchTraceError


def main(argv: list[str]) -> None:
    """Analyse one trace and keep the result."""
    os.nice(19)
    end_with_parent()
    # Training needs the cores more.
    for name in ("POLARS_MAX_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    answer: dict[str, Any] = {}
    try:
        from megatron.torch_trace.analysis.run.kept_analyses import keep

        kept = keep([Path(argv[0])], jobs=1)
        if kept.skipped:
            answer["error"] = kept.skipped[0].reason
    except TorchTraceError as error:
        answer["error"] = str(error)
    except Exception as error:
        # A line in training's log, no traceback between its own.
        answer["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps(answer))


if __name__ == "__main__":
    be_killed_first()
    main(sys.argv[1:])
