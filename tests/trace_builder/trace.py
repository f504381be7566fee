# SPDX-License-Identifier: Apache-2.0
"""A trace by hand: every event of a test stands in the test. All times are ns from the start."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trace_builder import documents, events
from trace_builder.events import LOOP, collective_args

if TYPE_CHECKING:
    from megatron.torch_trace.analysis.timeline.activity import Activity
    from megatron.torch_trace.analysis.timeline.timeline import Timeline

BASE = 1_790_857_026_000_000_000

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SENDRECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT"


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
        self.events: list[str] = []
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

    def add(self, *texts: str) -> TraceBuilder:
        """Events as they are: the clock does not shift them."""
        self.events += texts
        return self

    def slice(self, cat: str, name: str, start: int, dur: int, **more: Any) -> TraceBuilder:
        """Any slice; `pid`, `tid` and `args` by name."""
        at = start + self.clock
        more.setdefault("args", {})
        return self.add(events.op(name, at, at + dur, cat=cat, **more))

    def step(self, number: int, start: int, end: int, **more: Any) -> TraceBuilder:
        return self.annotation(f"ProfilerStep#{number}", start, end, **more)

    def op(self, name: str, start: int, end: int, **more: Any) -> TraceBuilder:
        return self.slice("cpu_op", name, start, end - start, **more)

    def annotation(self, name: str, start: int, end: int, **more: Any) -> TraceBuilder:
        return self.slice("user_annotation", name, start, end - start, **more)

    def call(self, name: str, start: int, end: int, **more: Any) -> TraceBuilder:
        """A runtime call that launches nothing."""
        return self.slice("cuda_runtime", name, start, end - start, **more)

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
        number = self.correlation
        if launch is not None:
            at = launch + self.clock
            self.add(events.launch(at, at + 2, number, name=call, tid=tid))
        given = {"device": 0, "stream": stream, "correlation": number, **(args or {})}
        return self.slice(cat, name, start, end - start, pid=0, tid=stream, args=given)

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
        header = documents.header(**self.entries)
        return documents.text(*self.events, header=header).decode()

    def write(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        return documents.write(path, self.text().encode())

    def activity(self, folder: Path) -> Activity:
        from megatron.torch_trace.analysis.timeline.activity import read_activity

        return read_activity(self.write(folder / "rank-0.json"))

    def timeline(self, folder: Path) -> Timeline:
        from megatron.torch_trace.analysis.timeline.timeline import timeline_of

        found = timeline_of(self.activity(folder))
        assert found is not None
        return found
