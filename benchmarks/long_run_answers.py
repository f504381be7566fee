# SPDX-License-Identifier: Apache-2.0
"""What the long run has shown: windows that can be read, faults that are named, losses, memory."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from long_run_launch import Launch
from long_run_plan import DATA, FORWARD, LEAK, RANKS, Fault, Plan
from long_run_processes import LEAST_SAMPLES, read_samples, slope

_SETTLING = 0.1
"""Of the samples of a launch, those at its beginning, which are left out of a slope."""
_WORDS = {DATA: "the data loader", FORWARD: "forward"}
_SLOW = re.compile(
    r"slow-rank\] warning: rank (\d+) \(.*?\) is slow since iteration (\d+): (\S+ \S+) longer in "
    r"(.*?) than its peers, .*?\(seen in iteration (\d+)\)"
)
_GROWS = re.compile(
    r"memory-grows\] warning: the memory of rank (\d+) \(.*?\) on its host grows by (.*?) an "
    r"iteration since iteration (\d+)"
)


def torch_trace(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command of the read side, as a user starts it."""
    return subprocess.run(
        [sys.executable, "-m", "megatron.torch_trace", *arguments],
        capture_output=True, text=True, cwd=Path(__file__).parents[1], check=False,
    )  # fmt: skip


def windows(runs: list[Path], answers: Path, tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """Every window, analysed; the answers are kept in a folder."""
    answers.mkdir()
    found = []
    for run in runs:
        for window in sorted(run.glob("iter-*")):
            began = time.monotonic()
            ended = torch_trace("analyze", str(window), "--json", "-j", "1")
            file = answers / f"{run.name}-{window.name}.json"
            file.write_text(ended.stdout)
            found.append(
                {
                    "run": run.name, "window": window.name, "status": ended.returncode,
                    "said": ended.stderr.strip(), "seconds": round(time.monotonic() - began, 2),
                    "ranks": len([*window.glob("rank-*.pt.trace.json.gz")]),
                    "answer": str(file),
                }
            )  # fmt: skip
            if len(found) % 10 == 0:
                tell(f"{len(found)} windows analysed")
    return found


def losses(launches: list[Path], alone: list[Path]) -> dict[str, Any]:
    """Loss and gradient norm of every iteration, to the bit, beside those without profiling.

    Launches are compared in their order, for each of them ended after the same checkpoint.
    """
    compared: set[int] = set()
    other = []
    for folder, reference in zip(launches, alone, strict=True):
        mine, its = _digits(folder), _digits(reference)
        compared |= mine.keys() & its.keys()
        other += [
            {"launch": folder.name, "iteration": at}
            for at in sorted(mine.keys() & its.keys())
            if mine[at] != its[at]
        ]
    return {"compared": len(compared), "other": other}


def _digits(folder: Path) -> dict[int, str]:
    lines = (folder / "rank-0.iterations").read_text().splitlines()
    return {int(at): digits for at, _, digits in (line.partition(" ") for line in lines)}


def lines_of_slow_ranks(logs: list[str]) -> list[dict[str, Any]]:
    """What the monitor has said about slow ranks."""
    return [
        {"rank": int(rank), "since": int(since), "by": by, "part": part, "seen": int(seen)}
        for log in logs
        for rank, since, by, part, seen in _SLOW.findall(log)
    ]


def named(plan: Plan, logs: list[str], found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was said of each injected fault."""
    slow = lines_of_slow_ranks(logs)
    growth = [
        {"rank": int(rank), "by": by, "since": int(since)}
        for log in logs
        for rank, by, since in _GROWS.findall(log)
    ]
    rows = []
    for fault in plan.faults:
        lines = [one for one in slow if _is_of(one, fault)]
        row: dict[str, Any] = {"kind": fault.kind, "rank": fault.rank,
                               "iterations": [fault.first, fault.last]}  # fmt: skip
        if fault.kind == LEAK:
            row["lines"] = [o for o in growth if o["rank"] == fault.rank
                            and o["since"] >= fault.first - plan.save]  # fmt: skip
        else:
            row["lines"] = lines
            told = [_seen_in(one, fault) for one in found if _lies_in(one["window"], fault)]
            row["windows"] = [one for one in told if one is not None]
        row["named"] = bool(row["lines"])
        rows.append(row)
    return rows


def other_lines(plan: Plan, logs: list[str]) -> list[dict[str, Any]]:
    """Lines about slow ranks that no injected fault explains."""
    return [
        one for one in lines_of_slow_ranks(logs) if not any(_is_of(one, f) for f in plan.faults)
    ]


def _is_of(line: dict[str, Any], fault: Fault) -> bool:
    return (
        fault.kind in _WORDS
        and line["rank"] == fault.rank
        and line["part"] == _WORDS[fault.kind]
        and fault.first - 2 <= line["since"] <= fault.last + 1
    )


def _lies_in(window: str, fault: Fault) -> bool:
    numbers = [int(text) for text in re.findall(r"\d+", window)]
    return bool(numbers) and all(fault.covers(one) for one in numbers)


def _seen_in(window: dict[str, Any], fault: Fault) -> dict[str, Any] | None:
    """What the analysis of a window says of the rank at fault; None where it was not recorded."""
    ranks = json.loads(Path(window["answer"]).read_text() or '{"ranks": []}')["ranks"]
    mine = next((one for one in ranks if one["rank"] == fault.rank), None)
    if mine is None:
        return None
    longest = max(mine["cpu"]["modules"], key=lambda one: one["self_ns"], default=None)
    whole = mine["cpu"]["window"]
    return {
        "window": window["window"],
        "longest_module": longest and longest["module"],
        "data_share": round(whole["data_ns"] / whole["length_ns"], 3),
    }


def memory(folder: Path, plan: Plan | None) -> list[dict[str, Any]]:
    """How resident memory, threads and open files of each rank of a launch change."""
    rows = []
    samples = [one for one in read_samples(folder / "samples.jsonl") if one.iteration]
    for rank in range(RANKS):
        mine = [one for one in samples if one.rank == rank]
        mine = mine[int(_SETTLING * len(mine)) :]
        mine = [one for one in mine if one.iteration < mine[-1].iteration]  # then processes end
        row: dict[str, Any] = {"launch": folder.name, "rank": rank, "samples": len(mine)}
        if len(mine) >= LEAST_SAMPLES:
            leaked = [_leaked(rank, one.iteration, plan) for one in mine]
            points = [
                (one.iteration, one.resident - took) for one, took in zip(mine, leaked, strict=True)
            ]
            found = slope(points)
            row |= {
                "iterations": [mine[0].iteration, mine[-1].iteration],
                "slope": found.as_json() if found is not None else None,
                "heap": _heap(folder, rank, plan),
                "leaked_mb": round(leaked[-1] / 1e6),
                "threads": [mine[0].threads, max(o.threads for o in mine), mine[-1].threads],
                "files": [mine[0].files, max(o.files for o in mine), mine[-1].files],
                "children": [mine[0].children, max(o.children for o in mine), mine[-1].children],
            }
        rows.append(row)
    return rows


def _leaked(rank: int, iteration: int, plan: Plan | None) -> float:
    """Bytes that this launch has kept on purpose by the end of an iteration."""
    for fault in plan.faults if plan is not None else ():
        if fault.kind == LEAK and fault.rank == rank:
            ended = min(iteration, fault.last) - fault.first + 1
            return max(0.0, ended * fault.amount * 1e6)
    return 0.0


def _heap(folder: Path, rank: int, plan: Plan | None) -> dict[str, float] | None:
    """How what is allocated changes, as resident memory does; what is kept free is not in it."""
    file = folder / f"rank-{rank}.heap"
    lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
    looks = [(int(at), int(used)) for at, used, _ in lines]
    found = slope(
        [(at, used - _leaked(rank, at, plan)) for at, used in looks[int(_SETTLING * len(looks)) :]]
    )
    return found.as_json() if found is not None else None


def files_left(
    launches: list[Launch], alone: list[Launch], runs: list[Path]
) -> dict[str, list[str]]:
    """Temporary files of the processes that leave none without profiling, and unfinished files."""

    def temporary(one: Launch) -> list[str]:
        return sorted(path.name for path in (one.folder / "tmp").iterdir())

    unfinished = [
        str(path.relative_to(run.parent))
        for run in runs
        for path in sorted(run.rglob("*"))
        if path.is_file() and _is_unfinished(path)
    ]
    return {
        "temporary": [name for one in launches for name in temporary(one)],
        "temporary_without_profiling": [name for one in alone for name in temporary(one)],
        "unfinished": unfinished,
    }


def _is_unfinished(path: Path) -> bool:
    left = path.name.endswith(".tmp") or path.name.startswith(".writable")
    return left or not path.stat().st_size
