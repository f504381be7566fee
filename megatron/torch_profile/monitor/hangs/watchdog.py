# SPDX-License-Identifier: Apache-2.0
"""NCCL's watchdog, which ends a process when a collective has been pending for too long.

torch calls nobody before it does. So a rank looks at the age of its pending collectives itself, and
is a little earlier than the watchdog.
"""

from __future__ import annotations

import math
import pickle
import threading
import time
from contextlib import suppress
from typing import Any

from megatron.torch_profile.hooks import cuda_graphs
from megatron.torch_profile.monitor.hangs.flight_entries import complete_batches

EARLIER = 0.9
"""Of the watchdog's time."""
_SECONDS = 20.0


def watchdog_seconds() -> float:
    """When it is time for a record, seconds after a collective was called; inf without NCCL."""
    import torch

    distributed: Any = torch.distributed
    try:
        if not distributed.is_initialized() or "nccl" not in str(distributed.get_backend()):
            return math.inf
        group = distributed.distributed_c10d._get_default_group()
        backend = group._get_backend(torch.device("cuda"))
        return EARLIER * float(backend.options._timeout.total_seconds())
    except Exception:  # private names of torch, which differ from version to version
        return math.inf


def pending_seconds(device: int | None = None) -> float:
    """How long the oldest collective of this rank has been pending; 0 if none is, or unknown.

    Args:
        device: the GPU of this rank; a new thread would make a context on the first one.
    """
    found: list[float] = []

    def ask() -> None:
        with suppress(Exception):  # the process may be ending
            found.append(_oldest(device))

    # torch may wait for a lock of CUDA that a thread of the job holds.
    thread = threading.Thread(target=ask, name="torch-profile-watchdog", daemon=True)
    thread.start()
    thread.join(_SECONDS)
    return found[0] if found else 0.0


def _oldest(device: int | None) -> float:
    import torch

    dump: Any = getattr(torch._C._distributed_c10d, "_dump_nccl_trace", None)
    if dump is None or cuda_graphs.is_captured():  # torch asks events, which ends a capture
        return 0.0
    if device is not None:
        torch.cuda.set_device(device)
    try:
        text = dump(includeCollectives=True, includeStackTraces=False, onlyActive=True)
    except TypeError:  # torch before 2.4
        text = dump()
    record = pickle.loads(text)
    record.setdefault("entries", [])
    done = complete_batches(record)
    pending = [one for one in record["entries"] if one.get("state") != "completed"]
    begun = [one["time_created_ns"] for one in pending if one.get("record_id") not in done]
    return (time.time_ns() - min(begun)) / 1e9 if begun else 0.0
