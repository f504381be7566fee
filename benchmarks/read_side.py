# SPDX-License-Identifier: Apache-2.0
"""How fast, and in how much memory, the read side works; other tools beside it in the same run.

    python benchmarks/read_side.py ../shared/data/h200/dp4-large/rank-0.json.gz
    python benchmarks/read_side.py --grow 3.2 ../shared/data/h200/dp4-large/rank-0.json.gz

Prints a Markdown table: seconds, MB of uncompressed JSON a second, the same by the seconds that
processors worked (which a busy machine disturbs less), and the largest sum of the resident
sizes of the process and its children (proportional, so that shared pages count once). Times are
the least of `--times` runs, of wall and of processors each.
`--grow GB` first writes a larger trace, the same events over and over with later times and other
ids, and measures only what works in constant memory. HTA, orjson and igzip (Debian's `isal`) are
left out where they are not installed; give the Python of an environment that has HTA with --hta.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

TOOL = [sys.executable, "-c", "from megatron.torch_trace.commands import main; main()"]
READ = """
import sys
from benchmarks.read_side import count_events
from megatron.torch_trace.reader import Event, Trace, available_cores
trace = Trace(sys.argv[1])
print(sum(trace.map(count_events, Event, workers=available_cores(), small_results=True)))
"""
READ_ALONE = READ.replace("available_cores(),", "1,")
COLUMNS = """
import sys
from megatron.torch_trace.columns.slice_table import read_table
from megatron.torch_trace.reader import available_cores
print(len(read_table(sys.argv[1], without=(), workers=available_cores()).slices))
"""
JSON = "import gzip, json, sys; print(len(json.load(gzip.open(sys.argv[1]))['traceEvents']))"
ORJSON = """
import gzip, orjson, sys
print(len(orjson.loads(gzip.open(sys.argv[1]).read())["traceEvents"]))
"""
HTA = (
    "import sys; from hta.trace_analysis import TraceAnalysis; TraceAnalysis(trace_dir=sys.argv[1])"
)


def count_events(block: object) -> int:
    """What the benchmark does with each block: nothing but look at it."""
    return len(block.events)  # type: ignore[attr-defined]


@dataclass
class Measurement:
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    status: int


def measure(
    command: list[str], output: Path | None = None, *, sample_seconds: float = 0.0
) -> Measurement:
    """Run a command; wall time and, if sampled, the largest memory of its process tree.

    Looking at memory takes a tenth of a core at 20 ms and makes what is looked at wait.
    """
    if "-o" in command:
        # To replace a file is to free its pages, which takes as long as to write them.
        Path(command[command.index("-o") + 1]).unlink(missing_ok=True)
    sink = output.open("wb") if output else subprocess.DEVNULL
    root = Path(__file__).resolve().parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    # An installed package is compiled; so is this one after its first run.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    start, used = time.perf_counter(), cpu_of_children()
    process = subprocess.Popen(command, stdout=sink, stderr=subprocess.DEVNULL, env=environment)
    peak = 0
    while sample_seconds and process.poll() is None:
        peak = max(peak, sum(map(resident, tree(process.pid))))
        time.sleep(sample_seconds)
    process.wait()
    seconds = time.perf_counter() - start
    return Measurement(seconds, cpu_of_children() - used, peak, process.returncode)


def cpu_of_children() -> float:
    """User and system seconds of all processes waited for so far, theirs included."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def tree(pid: int) -> list[int]:
    found = [pid]
    for parent in found:
        try:
            children = Path(f"/proc/{parent}/task/{parent}/children").read_text()
        except OSError:
            continue
        found += map(int, children.split())
    return found


def resident(pid: int) -> int:
    """Proportional set size, in bytes: pages shared by n processes count 1/n in each."""
    try:
        match = re.search(r"^Pss: +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)
    except OSError:
        return 0
    return int(match[1]) * 1024 if match else 0


def grow(trace: Path, gigabytes: float, folder: Path) -> Path:
    """A trace of the wanted size from the events of another: later times, other ids, each round."""
    from megatron.torch_trace.files.writer import OutputFile, TraceWriter
    from megatron.torch_trace.reader import SlimEvent, Trace

    target = folder / "grown.json.gz"
    number = re.compile(rb'("(?:ts|id|correlation|External id|Ev Idx)": )(\d+)')
    with OutputFile(target, force=True) as sink:
        writer = TraceWriter(sink)
        writer.begin(Trace(trace).read_header().entries)
        rounds = 0
        while sink.written < gigabytes * 1e9:
            shift = rounds * 10_000_000

            def later(match: re.Match[bytes], shift: int = shift) -> bytes:
                return match[1] + str(int(match[2]) + shift).encode()

            for block in Trace(trace).blocks(SlimEvent):
                text = block.text
                writer.add_joined(number.sub(later, text.strip()) if text else b"")
            rounds += 1
        writer.end({})
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--grow", type=float, metavar="GB", help="measure on a trace of this size")
    parser.add_argument("--hta", metavar="PYTHON", help="a Python that can import hta")
    parser.add_argument("--times", type=int, default=3, help="runs of each row [default: 3]")
    parser.add_argument("--ranks", type=int, default=8, help="ranks to merge [default: 8]")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trace = arguments.trace
        if arguments.grow:
            trace = grow(trace, arguments.grow, folder)
        run(trace, folder, arguments)


def run(trace: Path, folder: Path, arguments: argparse.Namespace) -> None:
    from megatron.torch_trace.reader import ByteStream, available_cores

    raw = sum(map(len, ByteStream(trace)))
    load = os.getloadavg()[0]
    print(f"{raw / 1e6:.1f} MB of JSON, {available_cores()} cores, load before: {load:.1f}\n")
    print("| what | seconds | CPU seconds | MB/s | MB a CPU second | peak MiB |")
    print("|---|---|---|---|---|---|")
    out = folder / "out.json"
    tool = [*TOOL]
    rows: list[tuple[str, list[str], Path | None]] = [
        ("`gzip -dc`", ["gzip", "-dc", str(trace)], None),
        ("`gzip -dc` to a file", ["gzip", "-dc", str(trace)], out),
    ]
    if shutil.which("igzip"):
        rows.append(("`igzip -dc`", ["igzip", "-dc", str(trace)], None))
    rows += [
        ("Python that does nothing", [sys.executable, "-c", "pass"], None),
        ("torch-trace decompress to stdout", [*tool, "decompress", str(trace), "-o", "-"], None),
        (
            "torch-trace decompress to a file",
            [*tool, "decompress", str(trace), "-o", str(folder / "own.json")],
            None,
        ),
        ("reader: typed events, one process", [sys.executable, "-c", READ_ALONE, str(trace)], None),
        ("reader: typed events", [sys.executable, "-c", READ, str(trace)], None),
    ]
    if not arguments.grow:
        rows.append(("events: columns", [sys.executable, "-c", COLUMNS, str(trace)], None))
    slim = [*tool, "slim", str(trace), "-o", str(folder / "slim.json.gz")]
    rows += [
        ("torch-trace info", [*tool, "info", str(trace)], None),
        ("torch-trace check", [*tool, "check", str(trace)], None),
        ("torch-trace slim to `.json.gz` --drop python", [*slim, "--drop", "python"], None),
        ("torch-trace slim to `.json.gz` --preset overlap", [*slim, "--preset", "overlap"], None),
        ("torch-trace slim to `.json.gz` --preset perfetto", [*slim, "--preset", "perfetto"], None),
    ]
    if not arguments.grow:
        rows.append(("json.load", [sys.executable, "-c", JSON, str(trace)], None))
        if importlib.util.find_spec("orjson"):
            rows.append(("orjson.loads", [sys.executable, "-c", ORJSON, str(trace)], None))
    for label, command, output in rows:
        row(label, command, raw, output, times=1 if arguments.grow else arguments.times)
    if not arguments.grow:
        merge_and_hta(trace, folder, raw, arguments)


def row(
    label: str, command: list[str], raw: int, output: Path | None = None, *, times: int = 3
) -> None:
    if times == 1:
        best = measure(command, output, sample_seconds=0.2)
    else:
        runs = [measure(command, output) for _ in range(times)]
        best = min(runs, key=lambda m: m.seconds)
        best.cpu_seconds = min(m.cpu_seconds for m in runs)
        best.peak_bytes = measure(command, output, sample_seconds=0.02).peak_bytes
    if best.status:
        print(f"| {label} | failed with status {best.status} | | | | |", flush=True)
        return
    megabytes = raw / 1e6
    cells = (
        label,
        f"{best.seconds:.2f}",
        f"{best.cpu_seconds:.2f}",
        f"{megabytes / best.seconds:.0f}",
        f"{megabytes / best.cpu_seconds:.0f}",
        f"{best.peak_bytes / 2**20:.0f}",
    )
    print("| " + " | ".join(cells) + " |", flush=True)


def merge_and_hta(trace: Path, folder: Path, raw: int, arguments: argparse.Namespace) -> None:
    ranks = folder / "ranks"
    ranks.mkdir()
    for rank in range(arguments.ranks):
        shutil.copy(trace, ranks / f"part-{rank}.json.gz")
    numbers = ",".join(map(str, range(arguments.ranks)))
    merged = [str(folder / "merged.json.gz"), "--ranks", numbers]
    row(
        f"torch-trace merge, {arguments.ranks} ranks, to `.json.gz`",
        [*TOOL, "merge", str(ranks), "-o", *merged],
        raw * arguments.ranks,
        times=1,
    )
    if arguments.hta:
        alone = folder / "hta"
        alone.mkdir()
        shutil.copy(trace, alone / "rank-0.json.gz")
        row("HTA: TraceAnalysis(...)", [arguments.hta, "-c", HTA, str(alone)], raw)
    help_seconds = measure([*TOOL, "--help"]).seconds
    print(f"| torch-trace --help | {help_seconds:.2f} | | | | |")
    print(json.dumps({"raw_bytes": raw, "trace": trace.name}), file=sys.stderr)


if __name__ == "__main__":
    main()
