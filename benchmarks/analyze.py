# SPDX-License-Identifier: Apache-2.0
"""How fast, and in how much memory, `torch-trace analyze` works; HTA beside it in the same run.

    python benchmarks/analyze.py ../shared/data/h200/dp4-large --hta ~/hta/bin/python
    python benchmarks/analyze.py ../shared/data/h200/tp2pp2
    python benchmarks/analyze.py ../shared/data/h200/dp4-large --grow 2

Whole processes: start-up, reading, all parts of the analysis and the report; for HTA loading,
temporal breakdown, overlap and kernel breakdown. Prints a Markdown table: the best and the worst
wall time of `--times` runs, CPU time of the best, and the largest sum of the resident sizes of the
process and its children. `--grow GB` first writes a larger trace out of the one given.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.read_side import TOOL, grow, measure

HTA = """
import sys
from pathlib import Path
from hta.trace_analysis import TraceAnalysis
folder = Path(sys.argv[1])
files = {rank: str(path) for rank, path in enumerate(sorted(folder.glob('*.json.gz')))}
analysis = TraceAnalysis(trace_files=files, trace_dir=str(folder))
analysis.get_temporal_breakdown(visualize=False)
analysis.get_comm_comp_overlap(visualize=False)
analysis.get_gpu_kernel_breakdown(visualize=False, num_kernels=10**9)
"""


@dataclass(frozen=True)
class Row:
    label: str
    best: float
    worst: float
    cpu: float
    peak_bytes: int

    def __str__(self) -> str:
        return (
            f"| {self.label} | {self.best:.2f} to {self.worst:.2f} | {self.cpu:.2f} "
            f"| {self.peak_bytes / 2**20:,.0f} |"
        )


def measured(label: str, command: list[str], times: int) -> Row:
    """The best of several runs of a command, and its memory in one more."""
    runs = [measure(command) for _ in range(times)]
    sampled = measure(command, sample_seconds=0.02)
    for one in (*runs, sampled):
        if one.status != 0:
            raise SystemExit(f"{label}: exit status {one.status}")
    best = min(runs, key=lambda run: run.seconds)
    worst = max(run.seconds for run in runs)
    return Row(label, best.seconds, worst, best.cpu_seconds, sampled.peak_bytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder with the traces of one window")
    parser.add_argument("--grow", type=float, metavar="GB", help="first make a trace of this size")
    parser.add_argument("--hta", metavar="PYTHON", help="a Python that can import hta")
    parser.add_argument("--times", type=int, default=3, help="runs of each [default: 3]")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.folder
        if arguments.grow:
            grow(next(folder.glob("*.json.gz")), arguments.grow, Path(name))
            folder = Path(name)
        load = os.getloadavg()[0]
        print(f"{len(os.sched_getaffinity(0))} cores, load before: {load:.1f}\n")
        print("| what | wall s | CPU s | peak MiB |\n|---|---|---|---|")
        analyze = [*TOOL, "analyze", str(folder)]
        rows = [measured("torch-trace analyze", analyze, arguments.times)]
        rows += [
            measured(f"torch-trace analyze {option}", [*analyze, option], arguments.times)
            for option in ("--no-gains", "-j1")
        ]
        if arguments.hta:
            hta = [arguments.hta, "-c", HTA, str(folder)]
            rows.append(measured("HTA", hta, arguments.times))
        for row in rows:
            print(row)


if __name__ == "__main__":
    main()
