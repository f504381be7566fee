# SPDX-License-Identifier: Apache-2.0
"""How large the workspace is that torch gives cuBLAS for each thread and stream.

torch keeps it for ever, and no tensor of Python holds it: nothing but its size tells what it is.
torch's own function for the size is not called: it ends the process where CUDA does not answer.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

_DEFAULTS = (4096 * 2 * 1024 + 16 * 8 * 1024, 32 << 20)
"""Bytes: `:4096:2:16:8`, and 32 MiB from Hopper on (`aten/src/ATen/cuda/CublasHandlePool.cpp`)."""
_PAIR = re.compile(r":(\d+):(\d+)")


def blas_workspace_bytes(environment: Mapping[str, str] = os.environ) -> tuple[int, ...]:
    """Sizes that workspaces may have in this process, each once.

    Args:
        environment: its variables. `CUBLAS_WORKSPACE_CONFIG` is `:SIZE:COUNT` in KiB, several
            times; `CUBLASLT_WORKSPACE_SIZE` is in KiB.
    """
    pairs = _PAIR.findall(environment.get("CUBLAS_WORKSPACE_CONFIG", ""))
    found = {sum(int(size) * int(count) << 10 for size, count in pairs)} if pairs else {*_DEFAULTS}
    lt = environment.get("CUBLASLT_WORKSPACE_SIZE", "")
    found |= {int(lt) << 10} if lt.isdecimal() else set()
    return tuple(sorted(found - {0}))
