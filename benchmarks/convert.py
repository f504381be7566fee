# SPDX-License-Identifier: Apache-2.0
"""How fast, and in how much memory, `torch-trace convert` works; a plain conversion beside it.

    python benchmarks/convert.py rank-0.json.gz
    python benchmarks/convert.py rank-0.json.gz --protos ~/perfetto/bin/python
    python benchmarks/convert.py rank-0.json.gz --ranks 8

The plain conversion is what one writes first: `json.load`, then one protobuf object for each begin
and end, names interned, arrows, no arguments, no lanes; it needs a Python with PyPI's `perfetto`
(--protos). `--ranks N` converts N copies of the trace that say to be different ranks. Whole
processes; prints a Markdown table with the best and the worst wall time of --times runs, and the
CPU time and the peak (process and children, shared pages once) of the best.
"""

from __future__ import annotations

import argparse
import gzip
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.read_side import TOOL, measure

PLAIN = """
import gzip, json, sys
from collections import defaultdict
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent
events = json.load(gzip.open(sys.argv[1]))["traceEvents"]
trace, rows, names = Trace(), {}, {}
ends = {(e["cat"], e["id"]) for e in events if e["ph"] == "f"}
starts = {(e["cat"], e["id"]) for e in events if e["ph"] == "s"} & ends
arrows = defaultdict(list)
for e in events:
    if e["ph"] in "sf" and (e["cat"], e["id"]) in starts:
        arrows[e["pid"], e["tid"], e["ts"]].append(e)
by_row = defaultdict(list)
for e in events:
    if e["ph"] == "X":
        by_row[e["pid"], e["tid"]].append(e)
def packet(ts, uuid, kind):
    p = trace.packet.add(timestamp=ts, trusted_packet_sequence_id=1, sequence_flags=2)
    p.track_event.type, p.track_event.track_uuid = kind, uuid
    return p.track_event
for uuid, (row, slices) in enumerate(by_row.items(), 1):
    descriptor = trace.packet.add().track_descriptor
    descriptor.uuid, descriptor.name = uuid, str(row)
    open_ends = []
    for e in sorted(slices, key=lambda e: (e["ts"], -e["dur"])):
        start = round(e["ts"] * 1000)
        while open_ends and open_ends[-1] <= start:
            packet(open_ends.pop(), uuid, TrackEvent.TYPE_SLICE_END)
        open_ends.append(start + round(e["dur"] * 1000))
        begin = packet(start, uuid, TrackEvent.TYPE_SLICE_BEGIN)
        begin.name_iid = names.setdefault(e["name"], len(names) + 1)
        for arrow in arrows.get((*row, e["ts"]), ()):
            flows = begin.flow_ids if arrow["ph"] == "s" else begin.terminating_flow_ids
            flows.append(arrow["id"])
    while open_ends:
        packet(open_ends.pop(), uuid, TrackEvent.TYPE_SLICE_END)
head = Trace()
words = head.packet.add(trusted_packet_sequence_id=1, sequence_flags=1).interned_data
for name, iid in names.items():
    words.event_names.add(iid=iid, name=name)
with gzip.open(sys.argv[2], "wb", compresslevel=6) as file:
    file.write(head.SerializeToString() + trace.SerializeToString())
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--ranks", type=int, default=1, metavar="N")
    parser.add_argument("--protos", metavar="PYTHON", help="a Python that can import perfetto")
    parser.add_argument("--times", type=int, default=3, metavar="N")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        traces = copies(arguments.trace, arguments.ranks, folder)
        raw = sum(len(gzip.decompress(trace.read_bytes())) for trace in traces)
        print(f"{raw / 1e6:.1f} MB of JSON, load before: {os.getloadavg()[0]:.1f}\n")
        print("| what | seconds | CPU seconds | MB/s | MB written | peak MiB |")
        print("|---|---|---|---|---|---|")
        output = folder / "out.pftrace.gz"
        for args in ("some", "all", "none"):
            command = [*TOOL, "convert", *map(str, traces), "-o", str(output), "--force"]
            row(f"`--args {args}`", [*command, "--args", args], raw, output, arguments.times)
        if arguments.protos and arguments.ranks == 1:
            command = [arguments.protos, "-c", PLAIN, str(traces[0]), str(output)]
            row("json.load and protobuf objects", command, raw, output, arguments.times)


def copies(trace: Path, ranks: int, folder: Path) -> list[Path]:
    """The trace itself, or copies of which each says another rank."""
    if ranks == 1:
        return [trace]
    text = gzip.decompress(trace.read_bytes())
    made = []
    for rank in range(ranks):
        path = folder / f"rank-{rank}.json.gz"
        path.write_bytes(gzip.compress(text.replace(b'"rank": 0,', b'"rank": %d,' % rank, 1), 1))
        made.append(path)
    return made


def row(label: str, command: list[str], raw: int, output: Path, times: int) -> None:
    runs = sorted((measure(command) for _ in range(times)), key=lambda one: one.seconds)
    if any(run.status for run in runs):
        print(f"| {label} | failed |")
        return
    best, worst = runs[0], runs[-1]
    peak = measure(command, sample_seconds=0.02).peak_bytes
    print(
        f"| {label} | {best.seconds:.2f} to {worst.seconds:.2f} | {best.cpu_seconds:.2f} | "
        f"{raw / 1e6 / best.seconds:.0f} | {output.stat().st_size / 1e6:.1f} | {peak >> 20} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
