# SPDX-License-Identifier: Apache-2.0
"""FLOPs of one step from its trace, where torch's counter does not see the products.

Transformer Engine launches them itself, without an operator of torch's.
"""

from __future__ import annotations

import sys
from pathlib import Path

from megatron.torch_trace.errors import TorchTraceError


def traced_flops(trace: Path, steps: int) -> int | None:
    """FLOPs of one of so many equal steps.

    Returns:
        None where no such library runs, or where the trace does not tell all of them.
    """
    if "transformer_engine" not in sys.modules:
        return None
    # Arrays are read only where they are needed.
    from megatron.torch_trace.analysis.gpu_work.operator_flops import work_flops
    from megatron.torch_trace.analysis.timeline.activity import read_activity
    from megatron.torch_trace.analysis.timeline.timeline import timeline_of

    try:
        timeline = timeline_of(read_activity(trace))
    except TorchTraceError:
        return None
    found = work_flops(timeline) if timeline is not None else None
    if found is None or found.unknown.any():
        return None
    return int(found.flops.sum()) // steps
