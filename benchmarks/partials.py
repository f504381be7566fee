# SPDX-License-Identifier: Apache-2.0
"""How long, and in how much memory, `torch-trace analyze` merges the partials of many ranks.

    python benchmarks/partials.py                          # 1,024 ranks: tp 8, dp 16, pp 8
    python benchmarks/partials.py --keep FOLDER            # and leave them there
    python benchmarks/partials.py --dp 128 --pp 16 --times 1 --keep FOLDER   # 16,384 ranks, 2.9 GB

The tables of each rank are those of a recorded trace (`--sample`); its collective calls are made
up: two steps of 16 micro-batches and 12 layers a stage with sequence parallelism, eight buckets of
gradients and parameters, norms over a model copy and over all ranks, clocks of hosts up to a second
apart, and one rank (517) that is late in every data-parallel call. About 3,200 calls a rank.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.read_side import TOOL
from megatron.torch_trace.analysis.communication.collectives import CollectiveKind
from megatron.torch_trace.analysis.communication.rank_calls import RankCalls
from megatron.torch_trace.analysis.communication.totals import CommunicationRow
from megatron.torch_trace.analysis.run import kept_analysis
from megatron.torch_trace.analysis.run.rank import RankOutcome, analyse_rank
from megatron.torch_trace.format.file_names import TraceName

ROOT = Path(__file__).resolve().parents[1]
RANKS_A_HOST = 8
STEPS, MICRO_BATCHES, LAYERS, BUCKETS = 2, 16, 12, 8
LATE_RANK, LATE_NS = 517, 3_000_000
BASE = 1_790_857_026_000_000_000


@dataclass(frozen=True)
class Call:
    """One call as all ranks of its group see it."""

    kind: int
    at: int
    transfer: int
    bytes: int


@dataclass(frozen=True)
class Layout:
    """How many ranks there are, in Megatron's order: tensor, data, pipeline."""

    tp: int
    dp: int
    pp: int

    @property
    def world(self) -> int:
        """All of them."""
        return self.tp * self.dp * self.pp

    def coordinates(self, rank: int) -> tuple[int, int, int]:
        """(tp, dp, pp) of a rank."""
        return rank % self.tp, rank // self.tp % self.dp, rank // (self.tp * self.dp)

    def rank(self, tp: int, dp: int, pp: int) -> int:
        """The rank at these coordinates."""
        return tp + self.tp * dp + self.tp * self.dp * pp

    def kinds(self, rank: int) -> tuple[CollectiveKind, ...]:
        """The collectives of a rank, in the order that `schedule` counts them."""
        tp, dp, pp = self.coordinates(rank)
        model = [self.rank(t, dp, p) for p in range(self.pp) for t in range(self.tp)]
        members = {
            "TENSOR_MODEL_PARALLEL_GROUP": ("tp", [self.rank(t, dp, pp) for t in range(self.tp)]),
            "DATA_PARALLEL_GROUP_WITH_CP": ("dp", [self.rank(tp, d, pp) for d in range(self.dp)]),
            "MODEL_PARALLEL_GROUP": ("mp", model),
            "default_pg": ("default", range(self.world)),
        }
        wanted = [
            ("TENSOR_MODEL_PARALLEL_GROUP", "allgather"),
            ("TENSOR_MODEL_PARALLEL_GROUP", "reduce_scatter"),
            ("DATA_PARALLEL_GROUP_WITH_CP", "reduce_scatter"),
            ("DATA_PARALLEL_GROUP_WITH_CP", "allgather"),
            ("MODEL_PARALLEL_GROUP", "allreduce"),
            ("default_pg", "allreduce"),
        ]
        return tuple(
            CollectiveKind(
                dimension=members[group][0],
                group=group,
                # torch lists no members of a group of all ranks.
                key=f"{group} {[] if group == 'default_pg' else members[group][1]}",
                collective=collective,
                group_size=len(members[group][1]),
            )
            for group, collective in wanted
        )


def schedule() -> list[Call]:
    """What every rank calls, with the times at which the last one of the group would arrive."""
    calls, at = [], 0
    for _ in range(STEPS):
        for _ in range(MICRO_BATCHES * LAYERS):
            for kind in (0, 1, 0, 1, 0, 1, 0, 1):
                at += 150_000
                calls.append(Call(kind, at, 60_000, 33_554_432))
        for kind in (2, 3):
            for _ in range(BUCKETS):
                at += 2_000_000
                calls.append(Call(kind, at, 1_200_000, 419_430_400))
        for kind in (4, 5):
            at += 500_000
            calls.append(Call(kind, at, 30_000, 4))
    return calls


def calls_of(rank: int, layout: Layout, plan: list[Call], rng: np.random.Generator) -> RankCalls:
    """One rank's calls: it arrives up to 100 us early, leaves with the others, by its own clock."""
    kind = np.array([call.kind for call in plan])
    arrival = np.array([call.at for call in plan]) - rng.integers(0, 100_000, len(plan))
    late = np.isin(kind, (2, 3))
    end = np.array([call.at + call.transfer for call in plan]) + np.where(late, LATE_NS, 0)
    if rank == LATE_RANK:
        arrival += np.where(late, LATE_NS, 0)
    clock = BASE + rank // RANKS_A_HOST * 7_777_777
    numbers = np.zeros(len(plan), dtype=np.int64)
    group_of = np.array([0, 0, 1, 1, 2, 3])[kind]
    for group in range(4):
        numbers[group_of == group] = np.arange(int((group_of == group).sum()))
    size = np.array([call.bytes for call in plan])
    return RankCalls(
        start=arrival + clock,
        end=end + rng.integers(0, 3_000, len(plan)) + clock,
        kind=kind,
        kinds=layout.kinds(rank),
        step=np.repeat(np.arange(STEPS), len(plan) // STEPS),
        bytes=size,
        elements=size // 2,
        seq=numbers,
    )


def communication(calls: RankCalls) -> tuple[CommunicationRow, ...]:
    """The table of a rank's calls, as the analysis of its trace would have made it."""
    rows = []
    for code, kind in enumerate(calls.kinds):
        mine = calls.kind == code
        time_ns, size = int((calls.end - calls.start)[mine].sum()), int(calls.bytes[mine].sum())
        rows.append(
            CommunicationRow(
                dimension=kind.dimension,
                group=kind.group,
                collective=kind.collective,
                calls=int(mine.sum()),
                time_ns=time_ns,
                exposed_ns=time_ns // 2,
                wait_ns=None,
                share=0.1,
                bytes=size,
                algbw_gbps=size / time_ns,
                busbw_gbps=size / time_ns,
                bandwidth_time_ns=time_ns,
            )
        )
    return tuple(rows)


def generate(folder: Path, sample: Path, layout: Layout, *, with_traces: bool) -> None:
    """Partials of all ranks, with stubs for traces or without."""
    recorded = [analyse_rank(path) for path in sorted(sample.glob("*.json.gz"))]
    plan, rng = schedule(), np.random.default_rng(7)
    for rank in range(layout.world):
        tp, dp, pp = layout.coordinates(rank)
        model = recorded[pp * len(recorded) // layout.pp]
        calls = calls_of(rank, layout, plan, rng)
        result = replace(
            model.result,
            communication=communication(calls),
            rank=rank,
            coordinates={"tp": tp, "dp": dp, "pp": pp},
            world_size=layout.world,
            host_name=f"node{rank // RANKS_A_HOST:04d}",
            pipeline=tuple(
                replace(one, rank=rank, stage=pp, stages=layout.pp) for one in model.result.pipeline
            ),
        )
        trace = folder / str(TraceName(rank, layout.world))
        trace.write_text('{"traceEvents": [\n]}')
        outcome = RankOutcome(rank, result, calls, "20261127-221810")
        kept_analysis.write(outcome, trace, kept_analysis.identify(trace))
        if not with_traces:
            trace.unlink()


def measured(label: str, command: list[str], times: int) -> str:
    """A line of the table: wall time of the best and the worst run, CPU of the best, memory."""
    runs = []
    for _ in range(times):
        began = time.perf_counter()
        # One process, so the kernel's own account of its memory is exact.
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if status:
            raise SystemExit(f"{label}: exit status {process.returncode}")
        seconds = time.perf_counter() - began
        runs.append((seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024))
    (best, cpu, _), worst, peak = min(runs), max(runs)[0], max(run[2] for run in runs)
    return f"| {label} | {best:.1f} to {worst:.1f} | {cpu:.1f} | {peak:,.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--sample",
        type=Path,
        default=ROOT / "tests" / "data" / "pp2-recompute-spans",
        help="traces whose tables the ranks get, by stage [default: %(default)s]",
    )
    for name, default in (("tp", 8), ("dp", 16), ("pp", 8)):
        parser.add_argument(f"--{name}", type=int, default=default, help="[default: %(default)s]")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave the partials there")
    parser.add_argument("--with-traces", action="store_true", help="leave stubs of traces beside")
    parser.add_argument("--times", type=int, default=3, help="runs of each [default: 3]")
    arguments = parser.parse_args()
    layout = Layout(arguments.tp, arguments.dp, arguments.pp)
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.keep or Path(name)
        folder.mkdir(exist_ok=True)
        if not (folder / "artifacts").exists():
            generate(folder, arguments.sample, layout, with_traces=arguments.with_traces)
        size = sum(path.stat().st_size for path in (folder / "artifacts").iterdir())
        calls = len(schedule())
        print(f"{layout.world:,} ranks, {calls:,} calls each, {size / 1e6:,.0f} MB of partials")
        load = os.getloadavg()[0]
        print(f"{len(os.sched_getaffinity(0))} cores, load before: {load:.1f}\n")
        print("| what | wall s | CPU s | peak MiB |\n|---|---|---|---|")
        analyze = [*TOOL, "analyze", str(folder)]
        print(measured("torch-trace analyze", analyze, arguments.times))
        print(measured("torch-trace analyze --json", [*analyze, "--json"], arguments.times))
        page = [*TOOL, "report", str(folder), "--force", "-o", str(Path(name) / "report.html")]
        print(measured("torch-trace report", page, arguments.times))


if __name__ == "__main__":
    main()
