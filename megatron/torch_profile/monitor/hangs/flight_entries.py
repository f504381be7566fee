# SPDX-License-Identifier: Apache-2.0
"""torch's flight recorder of this process: the collectives that it has called.

Asking it calls no collective and waits for no GPU. torch may still wait for a lock of CUDA that a
thread of the job holds, so it is asked in a thread that nobody waits for longer than a moment.
"""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from typing import Any

from megatron.torch_profile.hooks import cuda_graphs

_SECONDS = 20.0
_KEPT_COMPLETED, _WITH_STACK = 500, 50
"""Calls that are complete, of which only the last are written, and fewer with their Python stacks:
they tell which rank left its usual order of calls."""


def flight_entries(device: int | None = None) -> bytes | None:
    """A pickle as torch's own, with the calls that are not complete and the last that are.

    None where torch keeps no such record, or does not answer.

    Args:
        device: the GPU of this rank; a new thread would make a context on the first one.
    """
    found: list[bytes] = []

    def ask() -> None:
        text = _dump(device)
        if text is not None:
            found.append(_shortened(text))

    thread = threading.Thread(target=ask, name="torch-profile-flight-entries", daemon=True)
    thread.start()
    thread.join(_SECONDS)
    return found[0] if found else None


def _dump(device: int | None) -> bytes | None:
    import torch

    distributed: Any = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    nccl = "nccl" in str(distributed.get_backend())
    name = "_dump_nccl_trace" if nccl else "_dump_fr_trace"
    dump: Any = getattr(torch._C._distributed_c10d, name, None)
    if dump is None or cuda_graphs.is_captured():  # torch asks events, which ends a capture
        return None
    if device is not None:
        torch.cuda.set_device(device)
    # The stacks of gloo's calls take seconds the first time, and the rank's own stack is there.
    return bytes(dump() if nccl else dump(includeStackTraces=False))


def _complete(entries: list[dict[str, Any]], groups: dict[str, dict[str, int]]) -> None:
    """Say of gloo's collectives that are complete that they are: torch only counts them.

    Its count may be one behind: the one after it is complete if the rank has gone on to another.
    """
    for one in entries:
        name = one.get("process_group", ("",))[0]
        group = groups.get(str(one.get("pg_id", name)), {})  # a number of this process alone
        last = group.get("last_completed_collective", -1) + (one is not entries[-1])
        is_gloo = str(one.get("profiling_name", "")).startswith("gloo:")
        if is_gloo and not one.get("is_p2p") and one.get("collective_seq_id", last + 1) <= last:
            one["state"] = "completed"


def complete_batches(record: dict[str, Any]) -> set[int]:
    """Numbers of transfers that are complete with their batch: torch never says so of themselves.

    Args:
        record: of this process, as torch has written it.
    """
    from megatron.torch_trace.flight_recorder.batches import joined_records
    from megatron.torch_trace.flight_recorder.record_file import record_of

    (found,) = joined_records([record_of(record, Path(), 0)])
    return {one.order for one in found.calls if one.is_transfer and not one.pending}


def _shortened(text: bytes) -> bytes:
    """Torch's own bytes, of this process."""
    record: dict[str, Any] = pickle.loads(text)
    entries = list(record.get("entries", ()))
    _complete(entries, record.get("pg_status", {}))
    done = complete_batches(record)
    for one in entries:
        if one.get("record_id") in done:
            one["state"] = "completed"
    completed = [one for one in entries if one.get("state") == "completed"]
    kept = {id(one) for one in completed[-_KEPT_COMPLETED:]}
    for one in completed[:-_WITH_STACK]:
        one.pop("frames", None)
    record["entries"] = [
        one for one in entries if one.get("state") != "completed" or id(one) in kept
    ]
    return pickle.dumps(record, 2)
