# SPDX-License-Identifier: Apache-2.0
"""Every fault of real traces through everything that writes: the result is strict JSON, whole."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
from trace_builder import (
    HEADER,
    TAIL,
    arrow_end,
    event,
    kernel,
    launch,
    metadata,
    step,
    strict,
    text,
    values,
    write,
)

from megatron.torch_trace.columns.slice_table import read_table
from megatron.torch_trace.files.sources import RankedTrace, read_metadata
from megatron.torch_trace.inspect.survey import survey
from megatron.torch_trace.rewrite.decompression import decompress
from megatron.torch_trace.rewrite.merge.merge import merge
from megatron.torch_trace.rewrite.merge.split import split
from megatron.torch_trace.rewrite.selection import Selection
from megatron.torch_trace.rewrite.slim.slim import slim

WORK = [
    step(1, 100_000, 1_000_000),
    launch(110_000, 115_000, 7),
    arrow_end("s", 7, 110_000),
    kernel("gemm", 120_000, 150_000, 7, external=7),
    arrow_end("f", 7, 120_000, pid=0, tid=7),
    metadata("thread_name", 0, 7, name="stream 7"),
]
SANE = ["ProfilerStep#1", "cudaLaunchKernel", "gemm"]


def beside(*odd: str) -> bytes:
    return text(*WORK, *odd)


def reindented(indent: int | None) -> bytes:
    twice = [arrow_end("f", 7, 120_000, pid=0, tid=7), arrow_end("f", 7, 120_000, pid=0, tid=7)]
    return json.dumps(json.loads(text(*WORK, *twice)), indent=indent).encode()


def with_header(old: str, new: str) -> bytes:
    assert old in HEADER
    return text(*WORK, header=HEADER.replace(old, new))


def with_tail(entry: str) -> bytes:
    return text(*WORK, tail=TAIL.replace('"traceName"', f'{entry},\n  "traceName"'))


BASE = '  "baseTimeNanoseconds": 1790857026000000000,\n'
FAULTS = {
    "bytes that are not UTF-8": beside(event("\udcfe\udcff")),
    "control characters": beside(event("a\x01b\tc\x00d")),
    "inf, nan and N/A": beside(event(args='"a": inf, "b": -nan, "c": N/A')),
    "quotes in a name": beside(event('f("x", 1)')),
    "quotes in the metadata": with_header('"NVIDIA H200"', '"the "fast" one"'),
    "quotes in the tail": with_tail('"INFO": ["{"event_id": 1}"]'),
    "backslashes in a name": beside(event(r"C:\Users\x")),
    "backslashes in the metadata": with_header('"NVIDIA H200"', r'"C:\gpu"'),
    "backslashes in the tail": with_tail(r'"cwd": "C:\w"'),
    "cut behind an event": text(*WORK, event("lost"), tail="")[:-9],
    "cut gzip": gzip.compress(text(*WORK, *[event(f"op{i}") for i in range(200)]))[:-20],
    "integers beyond 64 bits": beside(
        event(args='"Comms Id": 18446744073709551557000', tid=1 << 70, pid=1 << 65)
    ),
    "arrows beyond 64 bits": beside(
        arrow_end("s", 1 << 70, 300_000), arrow_end("f", 1 << 70, 301_000)
    ),
    "19-digit timestamps": beside(event(ts="1790857026000123.125")),
    "no base": with_header(BASE, ""),
    "absolute times": text(
        *[one.replace('"ts": 1', '"ts": 17908570260001') for one in WORK],
        header=HEADER.replace(BASE, ""),
    ),
    "trailing comma": text(*WORK, tail=",\n" + TAIL),
    "empty events": beside("{}", "{}"),
    "text as ids": beside(event(pid="Spans", tid="all of it"), event(pid=-1, tid=-5)),
    "links that are no numbers": beside(
        event(cat="cuda_runtime", args='"correlation": -1, "External id": null'),
        event(cat="cuda_runtime", args='"correlation": "x", "External id": -7'),
    ),
    "no duration": beside(event(dur=None)),
    "negative times": beside(event(dur="-1"), event(ts=-5_000)),
    "no time at all": beside('{"ph": "X", "name": "x", "pid": 1, "tid": 1}'),
    "absurd times": beside(event(ts="9e15"), event(dur="9e15"), event(ts="0", dur="0")),
    "overruns": beside(kernel("long", 130_000, 5_000_130_000, 8), kernel("b", 140_000, 141_000, 9)),
    "old categories": beside(event("old", cat="Kernel", pid=0, tid=7), event(cat="Operator")),
    "on a single line": reindented(None),
    "indented": reindented(2),
    "duplicate keys": beside(event().replace('"ph": "X"', '"ph": "X", "pid": 4, "ts": 1')),
    "header behind the events": json.dumps(
        dict(reversed(json.loads(text(*WORK)).items()))
    ).encode(),
    "bare array": json.dumps(json.loads(text(*WORK))["traceEvents"]).encode(),
    "keys in another order": beside('{"tid": 7, "ts": 5, "pid": 42, "name": "x", "ph": "X"}'),
    "keys of events in arguments": beside(event(args='"pid": 42, "ts": 1.000, "id": 3')),
    "crossing slices": beside(
        event("A", 200_000), event("B", 205_000), arrow_end("s", 9, 205_000, cat="fwdbwd"),
        event("C", 300_000), arrow_end("f", 9, 300_000, cat="fwdbwd"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_no_fault_stops_a_command_or_costs_what_is_sane(fault: str, tmp_path: Path) -> None:
    path = write(tmp_path / "rank-3.json", FAULTS[fault])
    other = write(tmp_path / "rank-1.json", text(*WORK))
    assert survey(path, crossing=True).gpu_events >= 1
    table = read_table(path)
    assert set(SANE) <= {table.names[code] for code in table.slices["name"]}
    written = {
        "repaired": lambda out: decompress(path, out, repair=True),
        "smaller": lambda out: slim(path, out, Selection(drop=frozenset({"python", "args"}))),
        "step": lambda out: slim(path, out, Selection(steps=frozenset({1}))),
        "overlap": lambda out: slim(path, out, Selection().with_preset("overlap")),
        "perfetto": lambda out: slim(path, out, Selection().with_preset("perfetto")),
        "merged": lambda out: merge(
            [RankedTrace(r, p, read_metadata(p)) for r, p in ((1, other), (3, path))],
            out,
            align=True,
        ),
    }
    for name, write_it in written.items():
        out = tmp_path / f"{name}.json"
        write_it(out)
        events = strict(out.read_bytes())["traceEvents"]
        found = Counter(e.get("name") for e in events if e.get("ph") == "X")
        assert all(found[sane] == (2 if name == "merged" else 1) for sane in SANE), name
    back = split(tmp_path / "merged.json", tmp_path)
    assert values(back[3].read_bytes()) == values((tmp_path / "repaired.json").read_bytes())
