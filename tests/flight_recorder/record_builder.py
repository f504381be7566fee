# SPDX-License-Identifier: Apache-2.0
"""Flight records as torch writes them, call by call."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

DESCRIPTIONS = {
    "tp": "TENSOR_MODEL_PARALLEL_GROUP",
    "dp": "DATA_PARALLEL_GROUP_WITH_CP",
    "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
    "ep": "EXPERT_MODEL_PARALLEL_GROUP",
}


class RecordBuilder:
    """The records of a job.

    Args:
        groups: `{"tp0": [0, 1]}`; letters are a dimension, the whole is torch's name.
    """

    def __init__(self, **groups: list[int]) -> None:
        self.groups = groups
        self.entries: dict[int, list[dict[str, Any]]] = {
            rank: [] for ranks in groups.values() for rank in ranks
        }
        self.clock = 1_000_000_000

    def call(
        self,
        ranks: int | list[int],
        group: str,
        sequence: int,
        name: str = "all_reduce",
        *,
        state: str = "scheduled",
        size: int = 4096,
        **more: Any,
    ) -> RecordBuilder:
        for rank in [ranks] if isinstance(ranks, int) else ranks:
            self.clock += 1000
            transfer = name.startswith(("send", "recv"))
            self.entries[rank].append(
                {
                    "record_id": len(self.entries[rank]),
                    "pg_id": 1,
                    "process_group": (group, DESCRIPTIONS.get(group.rstrip("0123456789"), "")),
                    "thread_name": "python",
                    "collective_seq_id": 0 if transfer else sequence,
                    "p2p_seq_id": sequence if transfer else 0,
                    "profiling_name": f"nccl:{name}",
                    "time_created_ns": self.clock,
                    "input_sizes": [[size]],
                    "input_dtypes": ["BFloat16"],
                    "output_sizes": [[size]],
                    "state": state,
                    "retired": state == "completed",
                    "is_p2p": transfer,
                }
                | more
            )
        return self

    def record(self, rank: int) -> dict[str, Any]:
        return {
            "version": "2.9",
            "pg_config": {
                name: {
                    "name": name,
                    "desc": DESCRIPTIONS.get(name.rstrip("0123456789"), ""),
                    "ranks": str(ranks),
                }
                for name, ranks in self.groups.items()
                if rank in ranks
            },
            "entries": self.entries[rank],
        }

    def write(self, folder: Path, *, without: int | None = None, as_json: bool = False) -> Path:
        for rank in self.entries:
            if rank != without:
                data = self.record(rank)
                text = json.dumps(data).encode() if as_json else pickle.dumps(data, 2)
                (folder / f"comm_lib_trace_rank_{rank}").write_bytes(text)
        return folder
