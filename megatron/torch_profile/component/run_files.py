# SPDX-License-Identifier: Apache-2.0
"""The run folder: what each rank measured, what was asked for, and what a trace says of itself."""

from __future__ import annotations

import json
import os
import socket
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from megatron.torch_profile.component.config import Config, snapshot
from megatron.torch_profile.component.measure.ceilings import device_name
from megatron.torch_profile.component.measure.work import Work
from megatron.torch_profile.component.ranks import Ranks
from megatron.torch_profile.component.results import Answer, Measured
from megatron.torch_profile.component.variants import Case
from megatron.torch_profile.plan import run_folder
from megatron.torch_profile.plan.topology import CPU
from megatron.torch_profile.record.session import facts
from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.files.atomic import atomic_path
from megatron.torch_trace.format.file_names import RUN_FILE, TraceName, WindowName


class RunFiles:
    """A run folder, and who writes there.

    Args:
        folder: it is there.
    """

    def __init__(self, config: Config, ranks: Ranks, folder: Path) -> None:
        self.folder = folder
        self._config = config
        self._ranks = ranks

    @classmethod
    def made(cls, config: Config, ranks: Ranks) -> RunFiles:
        """With a folder of its own.

        Raises:
            UsageError: it cannot be made.
        """
        root = Path(config.dir).absolute()
        made = ranks.of_first(lambda: run_folder.make(root))
        if isinstance(made, UsageError):
            raise UsageError(f"dir: {root}; no folder can be made there; name one that can.")
        return cls(config, ranks, made)

    def remove_empty(self) -> None:
        """Take the folder back if nothing was written into it."""
        with suppress(OSError):
            self.folder.rmdir()

    def metadata(
        self, case: Case, flops: int | None, device: str, *, causal: bool | None
    ) -> dict[str, Any]:
        """What a trace of this rank says of itself."""
        return {
            "schema": 1,
            "run": self.folder.name,
            "rank": self._ranks.rank,
            "world_size": self._ranks.size,
            "coordinates": {},
            "layout": {},
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "device": device_name(device) if device == "cuda" else CPU,
            "argv": sys.argv,
            "model_flops_per_iteration": flops or None,
            "causal_attention": causal,
            "component": {"target": case.target, "variant": case.name},
        }

    def write_summary(
        self, window: WindowName, case: Case, mine: Measured, work: Work | None, device: str
    ) -> None:
        """`artifacts/rank-0.summary.json` of a window: this rank's own numbers."""
        name = TraceName(self._ranks.rank, self._ranks.size)
        path = self.folder / str(window) / name.artifact("summary.json")
        summary = {
            "schema": 1,
            "rank": self._ranks.rank,
            "variant": case.name,
            "device": device_name(device),
            "times_ns": list(mine.times),
            **{f"{key}_ns": value for key, value in asdict(mine.summary).items() if key != "steps"},
            "steps": mine.summary.steps,
            "flops": work.flops if work else None,
            "bytes": work.bytes if work else None,
            "peak_memory_bytes": mine.peak_bytes,
        }
        _write(path, summary)

    def write_run_file(self, answer: Answer) -> None:
        """`run.json`, with the config as it was, by rank 0."""
        if self._ranks.rank != 0:
            return
        run = {
            "schema": 1,
            "run": self.folder.name,
            **facts(),
            "arguments": {"target": self._config.target, "device": answer.device},
            "world_size": self._ranks.size,
            "layout": {},
            "ranks": [],
            "component": snapshot(self._config),
            "variants": [
                {"name": one.case.name, "window": str(one.window) if one.window else None}
                for one in answer.results
            ],
            "torch_threads": torch.get_num_threads(),
        }
        _write(self.folder / RUN_FILE, run)


def _write(path: Path, document: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as unfinished:
        unfinished.write_text(json.dumps(document, indent=1, default=str) + "\n")
