# SPDX-License-Identifier: Apache-2.0
"""How many calls name a known cause: with the tools of `torch-trace mcp`, and with the files alone.

    python benchmarks/agent_calls.py

No model is asked: both sides follow a fixed order, so that everybody gets the same numbers. With
the tools it is the skill of docs/agents.md: `overview`, `findings`, then one tool. With the files
it is what somebody who knows traces, but not the cause, does with plain Python, one script a call:
metadata; time by name; busy time and communication by rank; calls of collectives by rank; longest
gaps of the GPU with what the CPU did, and launch delays. A cause counts as named when the answer
has what is needed to say it (`Case`): of the tools the finding by its name, of the files numbers
that only this cause explains. Needs the extra [agent].
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "data"
SERVER = "from megatron.torch_trace.commands import main; main()"
WORK = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass
class Files:
    """What five scripts find in the files, in their order; each is one call."""

    traces: list[dict[str, Any]]

    def events(self, rank: int, *categories: str) -> list[dict[str, Any]]:
        found = self.traces[rank]["traceEvents"]
        return [e for e in found if e.get("ph") == "X" and e.get("cat") in categories]

    def window(self, rank: int) -> float:
        work = self.events(rank, *WORK)
        return max(e["ts"] + e["dur"] for e in work) - min(e["ts"] for e in work) if work else 0.0

    def metadata(self) -> dict[str, Any]:
        return {"ranks": [one.get("distributedInfo", {}).get("rank") for one in self.traces]}

    def names(self) -> dict[str, Any]:
        """Share of the window by name, of the GPU's kernels and of annotations, on rank 0."""
        total: dict[str, float] = defaultdict(float)
        window = self.window(0) or 1
        for e in self.events(0, "kernel", "user_annotation"):
            total[re.sub(r"#\d+", "", e["name"])[:60]] += e["dur"] / window
        return {"shares": dict(sorted(total.items(), key=lambda one: -one[1])[:15])}

    def busy(self) -> dict[str, Any]:
        """Idle share and time in NCCL kernels by rank."""
        found = {}
        for rank in range(len(self.traces)):
            end = busy = 0.0
            for e in sorted(self.events(rank, *WORK), key=lambda e: e["ts"]):
                busy += max(0.0, e["ts"] + e["dur"] - max(end, e["ts"]))
                end = max(end, e["ts"] + e["dur"])
            nccl = sum(e["dur"] for e in self.events(rank, "kernel") if "nccl" in e["name"])
            found[rank] = {"idle": 1 - busy / (self.window(rank) or 1), "nccl_us": nccl}
        return {"by_rank": found}

    def calls(self) -> dict[str, Any]:
        """By collective kernel the time on each rank: who is in it for the shortest is late."""
        found: dict[str, list[float]] = {}
        for rank in range(len(self.traces)):
            for e in self.events(rank, "kernel"):
                if "nccl" in e["name"]:
                    found.setdefault(e["name"][:40], [0.0] * len(self.traces))[rank] += e["dur"]
        return {"collectives": found}

    def gaps(self) -> dict[str, Any]:
        """Of rank 0 the longest gap, the longest slices of the CPU inside it, and launch delays."""
        begun = {
            e["args"]["correlation"]: e["ts"]
            for e in self.events(0, "cuda_runtime", "cuda_driver")
            if "correlation" in e.get("args", {})
        }
        work = sorted(self.events(0, *WORK), key=lambda e: e["ts"])
        at = [begun.get(e.get("args", {}).get("correlation")) for e in work]
        delays = [e["ts"] - t for e, t in zip(work, at, strict=True) if t is not None]
        pairs = [
            (after["ts"] - one["ts"] - one["dur"], one["ts"] + one["dur"])
            for one, after in pairwise(work)
        ]
        gap, start = max(pairs, default=(0.0, 0.0))
        inside = [
            (e["name"][:60], e["dur"])
            for e in self.events(0, "cpu_op", "python_function", "user_annotation", "cuda_runtime")
            if start <= e["ts"] and e["ts"] + e["dur"] <= start + gap
        ]
        return {
            "gap_us": gap,
            "inside": sorted(inside, key=lambda one: -one[1])[:5],
            "delay_us": median(delays) if delays else None,
        }

    def answers(self) -> Iterator[dict[str, Any]]:
        for script in (self.metadata, self.names, self.busy, self.calls, self.gaps):
            yield script()


def share_of(found: dict[str, Any], pattern: str) -> float:
    return sum(s for n, s in found.get("shares", {}).items() if re.search(pattern, n, re.I))


def late(found: dict[str, Any], rank: int) -> bool:
    """Whether a rank is in most collectives for less than a third of the others' time."""
    rows = [row for row in found.get("collectives", {}).values() if sum(row) > 1_000]
    first = [row[rank] * 3 < median(row[:rank] + row[rank + 1 :]) for row in rows]
    return bool(first) and sum(first) * 2 > len(first)


@dataclass(frozen=True)
class Case:
    """A trace, its known cause, and what an answer must have so that the cause can be named."""

    trace: str
    cause: str
    tools: str
    files: Callable[[dict[str, Any]], bool]


CASES = [
    Case("analysis/dp4-rank2-slow", "rank 2 sleeps in each forward pass", r"straggler: Rank 2",
         lambda found: late(found, 2)),
    Case("analysis/slow-dataloader", "the data set sleeps", r"\bdata_loader\w*:",
         lambda found: share_of(found, "DataLoader") > 0.1),
    Case("analysis/dp4", "launch-bound", r"launch_bound:",
         lambda found: found.get("delay_us", 99) < 50 and found["gap_us"] > 0),
    Case("analysis/ep4-moe", "expert-parallel all-to-all", r"exposed_communication_ep:",
         lambda found: share_of(found, r"nccl.*(SendRecv|AllToAll)") > 0.2),
    Case("pp4-interleaved-spans", "pipeline bubble", r"pipeline_bubble:",
         lambda found: share_of(found, r"nccl.*SendRecv") > 0.2),
    Case("faults/02-loader-without-steps.json", "the data loader", r"\bdata_loader\w*:",
         lambda found: share_of(found, "DataLoader") > 0.1),
    Case("faults/12-short-sync-long-python.json", "a Python function after a short synchronisation",
         r"mydata.py\(12\): decode",
         lambda found: any("decode" in name for name, _ in found.get("inside", []))),
    Case("faults/03-gpu-clock-behind-2s.json", "the GPU's rows are on another clock",
         r"gpu_on_another_clock:",
         lambda found: (found.get("delay_us") or 0) < 0),
]  # fmt: skip


async def with_tools(trace: Path, pattern: str) -> tuple[int | None, int]:
    """Calls until the cause is named (None: never), and characters that were answered."""
    server = StdioServerParameters(
        command=sys.executable,
        args=["-c", SERVER, "mcp", str(trace)],
        env={"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
    )
    read = 0
    async with Client(stdio_client(server)) as client:
        calls: list[tuple[str, dict[str, Any]]] = [
            ("overview", {}), ("findings", {}), ("rank", {"rank": 0}), ("critical_path", {}),
        ]  # fmt: skip
        for number, call in enumerate(calls, 1):
            text = (await client.call_tool(*call)).content[0].text
            read += len(text)
            if re.search(pattern, text):
                return number, read
    return None, read


def with_files(trace: Path, is_named: Callable[[dict[str, Any]], bool]) -> tuple[int | None, int]:
    """The same with the scripts."""
    read = 0
    for number, found in enumerate(Files([load(one) for one in files_of(trace)]).answers(), 1):
        read += len(json.dumps(found))
        if is_named(found):
            return number, read
    return None, read


def files_of(trace: Path) -> list[Path]:
    return [trace] if trace.is_file() else sorted(trace.glob("*.json*"))


def load(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    found: dict[str, Any] = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    return found


def main() -> None:
    print("| trace | known cause | tools: calls, characters | files alone: calls, characters |")
    print("|---|---|---|---|")
    for case in CASES:
        trace = DATA / case.trace
        answers = [asyncio.run(with_tools(trace, case.tools)), with_files(trace, case.files)]
        shown = [f"{'not named' if calls is None else calls}, {read:,}" for calls, read in answers]
        print(f"| {case.trace} | {case.cause} | {' | '.join(shown)} |", flush=True)


if __name__ == "__main__":
    main()
