# SPDX-License-Identifier: Apache-2.0
"""Healthy inputs of each kind, small, made anew from the tests' data; and what reads each kind."""

from __future__ import annotations

import copy
import gzip
import io
import json
import pickle
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import zstandard
from fuzz_changes import change_bytes, change_compression, change_value, json_text

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "data"
_EVENTS = 250
_ENTRIES = 60
Command = list[str]


@dataclass(frozen=True)
class Kind:
    """Inputs of one kind.

    Args:
        write: fills an empty folder with one changed input; says what was changed.
        commands: what is run on it; `{in}` is the input, `{out}` a free path.
    """

    write: Callable[[Path, random.Random], str]
    commands: tuple[str, ...]


@cache
def _trace(path: Path) -> Any:
    """A trace, or the first part of a long one, as plain data."""
    raw = path.read_bytes()
    if raw.startswith(b"\x1f\x8b"):
        raw = gzip.decompress(raw)
    elif raw.startswith(b"(\xb5/\xfd"):
        raw = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(raw)).read()
    try:
        tree = json.loads(raw)
    except ValueError:
        return None
    events = tree.get("traceEvents") if isinstance(tree, dict) else None
    if not isinstance(events, list) or len(events) <= _EVENTS:
        return tree
    named = [e for e in events if e.get("ph") == "M" or "micro-batch" in str(e.get("name"))]
    steps = [e for e in events if str(e.get("name")).startswith("ProfilerStep#")]
    ids = sorted({e["args"].get("correlation", 0) for e in events if e.get("cat") == "kernel"})
    few = set(ids[:60])
    linked = [e for e in events if e.get("args", {}).get("correlation") in few]
    tree["traceEvents"] = [*named[:20], *steps, *linked, *events[:_EVENTS]]
    return tree


@cache
def _traces() -> tuple[Path, ...]:
    files = [path for path in sorted(DATA.rglob("rank-*.json*")) if path.stat().st_size < 1 << 19]
    return (*files, *sorted((DATA / "faults").glob("[0-9]*.json*")))


def _changed_trace(path: Path, rng: random.Random) -> tuple[str, bytes]:
    tree = copy.deepcopy(_trace(path))
    level = rng.randrange(4)
    if level in (0, 3):
        # Some of the traces that went wrong have no list of events.
        events = tree.get("traceEvents") or [] if isinstance(tree, dict) else tree
        for _ in range(rng.choice((1, 2, 5, 40))):
            where = rng.random()
            if where < 0.6 and events:
                change_value(rng.choice(events), rng, as_json=True)
            else:
                change_value(tree, rng, as_json=True)
    data = json_text(tree, rng)
    if rng.random() < 0.05:
        data = data.replace(b'"ts":', b'"ts": 1, "ts":', rng.choice((1, -1)))
    if level in (1, 3):
        for _ in range(rng.choice((1, 1, 3, 20))):
            data = change_bytes(data, rng)
    if level == 2 or rng.random() < 0.2:
        data = change_compression(data, rng)
    return f"{path.relative_to(DATA)} level {level}", data


def _one_trace(folder: Path, rng: random.Random) -> str:
    path = rng.choice(_traces())
    while _trace(path) is None:
        path = rng.choice(_traces())
    said, data = _changed_trace(path, rng)
    (folder / "rank-0.pt.trace.json").write_bytes(data)
    return said


def _window(folder: Path, rng: random.Random) -> str:
    sets = ("tp2pp2-spans", "pp4-interleaved-spans", "analysis/dp4-rank2-slow", "tp2pp2")
    chosen = DATA / rng.choice(sets)
    said = []
    for number, path in enumerate(sorted(chosen.glob("rank-*"))[:3]):
        if number == 0 or rng.random() < 0.5:
            one, data = _changed_trace(path, rng)
            said.append(one)
        else:
            data = json_text(_trace(path), rng)
        (folder / f"rank-{number}.pt.trace.json").write_bytes(data)
    return ", ".join(said)


def _kept(folder: Path, rng: random.Random) -> str:
    """Kept analyses of a window, changed, beside its traces."""
    from megatron.torch_trace.commands import cli

    _healthy_window(folder)
    with _quiet():
        cli(["analyze", str(folder), "--partials", "--no-gains"], standalone_mode=False)
    files = sorted(folder.glob("artifacts/*"))
    chosen = rng.choice(files)
    data = chosen.read_bytes()
    for _ in range(rng.choice((1, 1, 3, 20))):
        data = change_bytes(data, rng)
    chosen.write_bytes(data)
    if rng.random() < 0.3:
        for path in folder.glob("rank-*"):
            path.unlink()
    return chosen.name


def _healthy_window(folder: Path) -> None:
    for number in (0, 2):
        tree = _trace(DATA / "tp2pp2-spans" / f"rank-{number}.pt.trace.json.gz")
        (folder / f"rank-{number}.pt.trace.json").write_text(json.dumps(tree))


def _quiet() -> Any:
    from contextlib import redirect_stdout

    return redirect_stdout(io.StringIO())


@cache
def _snapshot() -> Any:
    tree = pickle.loads(gzip.decompress((DATA / "memory-snapshot.pickle.gz").read_bytes()))
    tree["device_traces"] = [one[-_ENTRIES:] for one in tree["device_traces"]]
    tree["segments"] = tree["segments"][:5]
    return tree


def _changed_pickle(tree: Any, rng: random.Random) -> bytes:
    level = rng.randrange(3)
    if level in (0, 2):
        tree = copy.deepcopy(tree)
        for _ in range(rng.choice((1, 2, 5, 40))):
            change_value(tree, rng, as_json=False)
    data = pickle.dumps(tree, rng.choice((2, 4, 5)))
    if level in (1, 2):
        for _ in range(rng.choice((1, 1, 3))):
            data = change_bytes(data, rng)
    return change_compression(data, rng) if rng.random() < 0.1 else data


def _memory(folder: Path, rng: random.Random) -> str:
    (folder / "rank-0.memory_snapshot.pickle").write_bytes(_changed_pickle(_snapshot(), rng))
    return "memory-snapshot.pickle.gz"


@cache
def _records() -> dict[int, Any]:
    sys.path.insert(0, str(ROOT / "tests" / "flight_recorder"))
    from record_builder import RecordBuilder  # type: ignore[import-not-found]

    built = RecordBuilder(tp0=[0, 1], tp1=[2, 3], dp0=[0, 2], dp1=[1, 3])
    for number in range(1, 6):
        built.call([0, 1], "tp0", number, state="completed")
        built.call([2, 3], "tp1", number, state="completed")
    built.call([0, 2], "dp0", 1, "all_gather")
    built.call([3], "dp1", 1, "all_gather")
    return {rank: built.record(rank) for rank in range(4)}


def _flight(folder: Path, rng: random.Random) -> str:
    changed = rng.randrange(4)
    for rank, tree in _records().items():
        data = pickle.dumps(tree, 2)
        if rank == changed:
            data = _changed_pickle(tree, rng)
            if rng.random() < 0.3:
                mine = copy.deepcopy(tree)
                change_value(mine, rng, as_json=True)
                data = json_text(mine, rng)
        (folder / f"comm_lib_trace_rank_{rank}").write_bytes(data)
    return f"rank {changed}"


_RUN: dict[str, Any] = {
    "world_size": 4,
    "plan": {"ranks": [0], "windows": [{"first": 3, "last": 3}, {"first": 5, "last": 6}]},
    "arguments": {"save": "/a", "save_interval": 25, "eval_iters": 5, "eval_interval": 40},
    "hosts": ["a", "b"],
    "versions": {"torch": "2.11.0"},
}
_ROW = {
    "iteration": 7, "train/step_time_ms": 100.0, "monitor/iteration": 7,
    "monitor/iteration_ms": 640.0, "monitor/slow_rank": 3, "monitor/slow_since": 6,
    "monitor/slow_seen": 7, "monitor/slow_by_ms": 41.2, "monitor/slow_by_ms/forward": 41.2,
    "monitor/slowest_rank": 5, "monitor/slowest_by_ms": 41.2,
}  # fmt: skip
_REQUEST = {"schema": 1, "iterations": 2, "ranks": ["0-3"], "spans": ["phases"]}
_ANSWER = {"state": "done", "says": "recorded iteration 20.", "first": 20, "last": 20}
_HANG = {"schema": 1, "rank": 0, "iteration": 6, "phase": "forward", "threads": []}


def _run(folder: Path, rng: random.Random) -> str:
    run = folder / "20260101-000000"
    window = run / "iter-0000003"
    for path in (window, run / "requests", run / "hangs"):
        path.mkdir(parents=True)
    _healthy_window(window)
    rows = [_ROW | {"iteration": at} for at in range(1, 30)]
    files: dict[str, list[Any]] = {
        "run.json": [_RUN],
        "metrics.jsonl": rows,
        "requests/a.json": [_REQUEST],
        "requests/a.answer.json": [_ANSWER],
        "hangs/rank-0.iter-0000006.hang.json": [_HANG],
    }
    said = []
    for name, trees in files.items():
        if rng.random() < 0.5:
            said.append(name)
            trees = copy.deepcopy(trees)
            for _ in range(rng.choice((1, 3))):
                change_value(trees, rng, as_json=True)
            text = b"\n".join(json_text(one, random.Random(0)) for one in trees)
            data = change_bytes(text, rng) if rng.random() < 0.3 else text
        else:
            data = "\n".join(map(json.dumps, trees)).encode()
        (run / name).write_bytes(data)
    return ", ".join(said)


KINDS = {
    "trace": Kind(
        _one_trace,
        (
            "check {in} --json", "info {in} --json", "analyze {in} --json", "analyze {in}",
            "report {in} -o {out}.html", "report {in} -o {out}.md", "slim {in} -o {out}.json.gz",
            "slim {in} --preset perfetto -o {out}.json", "slim {in} --max-name 40 -o {out}.json",
            "slim {in} --preset overlap --step 1 -o {out}.json",
            "decompress {in} --repair -o {out}.json", "decompress {in} -o {out}.json",
            "export {in} -o {out}", "convert {in} -o {out}.pftrace", "operators {in} --json",
            "stacks {in}", "whatif {in} --json", "convert {in} --args all -o {out}.pftrace",
        ),
    ),
    "window": Kind(
        _window,
        (
            "analyze {in} --json", "merge {in} -o {out}.json",
            "merge {in} --align -o {out}.json.gz",
            "report {in} -o {out}.html", "whatif {in} --json --comm dp*0.5", "export {in} -o {out}",
            "compare {in}/rank-0.pt.trace.json {in}/rank-1.pt.trace.json --json",
            "convert {in} -o {out}.pftrace", "whatif {in} --sync none --save {out}",
        ),
    ),
    "kept": Kind(_kept, ("analyze {in} --json", "report {in} -o {out}.html")),
    "memory": Kind(
        _memory,
        ("memory {in} --json", "memory {in}", "memory {in} -o {out}.html", "memory {in} --fit"),
    ),
    "flight": Kind(_flight, ("hang {in} --json", "hang {in}")),
    "run": Kind(
        _run,
        (
            "status {in}/20260101-000000 --json", "status {in}/20260101-000000",
            "info {in}/20260101-000000 --json", "report {in}/20260101-000000 -o {out}.html",
            "hang {in}/20260101-000000 --json", "analyze {in}/20260101-000000 --json --no-gains",
        ),
    ),
}  # fmt: skip
