# SPDX-License-Identifier: Apache-2.0
"""A trace by hand: every event of a test stands in the test. All times are ns from the start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from megatron.torch_trace.analysis.timeline.activity import Activity, read_activity
from megatron.torch_trace.analysis.timeline.timeline import Timeline, timeline_of

BASE = 1_790_857_026_000_000_000
LOOP, BACKWARD = 100, 200
"""Threads: of the training loop, and of autograd."""

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SENDRECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT"

DESCRIPTIONS = {
    "tp": "TENSOR_MODEL_PARALLEL_GROUP",
    "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
    "dp": "DATA_PARALLEL_GROUP_WITH_CP",
    "ep": "EXPERT_MODEL_PARALLEL_GROUP",
    "default": "default_pg",
}


class TraceBuilder:
    """Events are added by methods that return the builder, then written as a file."""

    def __init__(
        self,
        rank: int | None = 0,
        world_size: int = 1,
        *,
        groups: list[dict[str, Any]] | None = None,
        device: str = "NVIDIA H200",
        clock: int = 0,
        own: dict[str, Any] | None = None,
    ) -> None:
        self.events: list[dict[str, Any]] = []
        self.clock = clock
        self.correlation = 0
        self.entries: dict[str, Any] = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": device}],
            "baseTimeNanoseconds": BASE,
        }
        if rank is not None:
            info: dict[str, Any] = {"backend": "nccl", "rank": rank, "world_size": world_size}
            if groups is not None:
                info["pg_config"] = groups
            self.entries["distributedInfo"] = info
        if own is not None:
            self.entries["torch_profile"] = own

    def add(self, cat: str, name: str, start: int, dur: int, **more: Any) -> TraceBuilder:
        """Any slice; `pid`, `tid` and `args` by name."""
        at = start + self.clock
        self.events.append(
            {
                "ph": "X",
                "cat": cat,
                "name": name,
                "pid": more.get("pid", 42),
                "tid": more.get("tid", LOOP),
                "ts": _us(at),
                "dur": _us(dur),
                "args": more.get("args", {}),
            }
        )
        return self

    def step(self, number: int, start: int, end: int, **more: Any) -> TraceBuilder:
        return self.add("user_annotation", f"ProfilerStep#{number}", start, end - start, **more)

    def op(self, name: str, start: int, end: int, **more: Any) -> TraceBuilder:
        return self.add("cpu_op", name, start, end - start, **more)

    def annotation(self, name: str, start: int, end: int, **more: Any) -> TraceBuilder:
        return self.add("user_annotation", name, start, end - start, **more)

    def call(self, name: str, start: int, end: int, **more: Any) -> TraceBuilder:
        """A runtime call that launches nothing."""
        return self.add("cuda_runtime", name, start, end - start, **more)

    def gpu(
        self,
        name: str,
        start: int,
        end: int,
        *,
        launch: int | None = None,
        tid: int = LOOP,
        cat: str = "kernel",
        stream: int = 7,
        args: dict[str, Any] | None = None,
        call: str = "cudaLaunchKernel",
    ) -> TraceBuilder:
        """Work of the GPU; `launch` is when the call began, None if that is not in the trace."""
        self.correlation += 1
        if launch is not None:
            own = {"correlation": self.correlation}
            self.add("cuda_runtime", call, launch, 2, tid=tid, args=own)
        given = {"device": 0, "stream": stream, "correlation": self.correlation, **(args or {})}
        return self.add(cat, name, start, end - start, pid=0, tid=stream, args=given)

    def collective(
        self,
        start: int,
        end: int,
        *,
        dimension: str = "dp",
        name: str = "allreduce",
        nelems: int = 1000,
        launch: int | None = None,
        size: int = 2,
        seq: int | None = None,
        **more: Any,
    ) -> TraceBuilder:
        """A communication kernel with torch's arguments, launched 10 ns before unless told."""
        args = collective_args(name, dimension, nelems=nelems, size=size)
        if seq is not None:
            args["Seq"] = seq
        args.update(more)
        return self.gpu(
            NCCL, start, end, launch=start - 10 if launch is None else launch, args=args
        )

    def text(self) -> str:
        head = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in self.entries.items())
        events = ",\n".join(_event(event) for event in self.events)
        return f'{{\n{head},\n"traceEvents": [\n{events}\n],\n"traceName": "by hand"\n}}\n'

    def write(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.text())
        return path

    def activity(self, folder: Path) -> Activity:
        return read_activity(self.write(folder / "rank-0.json"))

    def timeline(self, folder: Path) -> Timeline:
        found = timeline_of(self.activity(folder))
        assert found is not None
        return found


def collective_args(
    name: str, dimension: str, *, nelems: int = 1000, size: int = 2, dtype: str = "BFloat16"
) -> dict[str, Any]:
    """The arguments that torch writes for a collective."""
    return {
        "Collective name": name,
        "In msg nelems": nelems,
        "Out msg nelems": nelems,
        "Group size": size,
        "dtype": dtype,
        "Process Group Name": dimension,
        "Process Group Description": DESCRIPTIONS[dimension],
        "Process Group Ranks": str(list(range(size))),
    }


def _us(ns: int) -> str:
    sign = "-" if ns < 0 else ""
    return f"{sign}{abs(ns) // 1000}.{abs(ns) % 1000:03d}"


def _event(event: dict[str, Any]) -> str:
    """As Kineto writes it: times as numbers with three decimals."""
    fields = [
        f"{json.dumps(key)}: {value if key in ('ts', 'dur') else json.dumps(value)}"
        for key, value in event.items()
    ]
    return f"{{{', '.join(fields)}}}"
