# SPDX-License-Identifier: Apache-2.0
"""What an analysis says of one window, small enough to log; and the program that finds it out.

    python -m megatron.torch_profile.publish.window_summary WINDOW --ranks 0 1 --wait 600 --analyse

runs beside training with the least priority. It waits until the traces of all ranks lie in the
window's folder, or time is up, analyses those that do, and writes `artifacts/summary.json` there.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron.torch_profile.export.own_process import answer_training, be_killed_first
from megatron.torch_trace.files.atomic import atomic_path
from megatron.torch_trace.format.breakdown_parts import BREAKDOWN_NAMES, BREAKDOWN_PARTS
from megatron.torch_trace.format.file_names import (
    ARTIFACTS,
    SUMMARY_FILE,
    TraceName,
    WindowName,
    found_analysis_of,
)
from megatron.torch_trace.wording import counted, iterations, percent

if TYPE_CHECKING:
    from megatron.torch_trace.analysis.results.analysis import Analysis, RankResult

RANK_COLUMNS = ("rank", "iteration_ms", *(f"{part}_pct" for part in BREAKDOWN_PARTS), "wait_ms")
FINDING_COLUMNS = ("severity", "code", "title", "advice")

_POLL_SECONDS = 0.5
_QUIET_SECONDS = 90.0
"""More than NFS takes to show that a file has grown, and than Kineto takes to stop."""
_QUIET_PARTIALS_SECONDS = 20.0
"""A rank's analysis takes about 5 s for a GB raw, and training may be waiting to end."""
_MOST_JOBS = 4
_CORES_PER_JOB = 8


@dataclass(frozen=True, slots=True)
class WindowSummary:
    """One window, as far as its traces were there.

    Args:
        first, last: its global iterations.
        scalars: `profile/...` -> number, what is known.
        ranks: rows of `RANK_COLUMNS`, ascending; None where unknown.
        missing_ranks: planned, and without a trace that could be analysed.
        findings: rows of `FINDING_COLUMNS`, most severe first.
    """

    first: int
    last: int
    scalars: dict[str, float]
    ranks: list[list[float | None]]
    missing_ranks: list[int]
    findings: list[list[str]]

    @property
    def iterations(self) -> str:
        """`3`, or `3-4`."""
        return f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"

    def line(self) -> str:
        """The window in a sentence."""
        shares = {part: self.scalars.get(f"profile/{part}_pct") for part in BREAKDOWN_PARTS}
        known = {part: percent(v / 100) for part, v in shares.items() if v is not None}
        said = [f"{BREAKDOWN_NAMES[part]} {share}" for part, share in known.items()]
        if not said:
            said = ["no GPU work in the traces"]
        lacking = ", ".join(map(str, self.missing_ranks))
        of = [counted(len(self.ranks), "rank")]
        of += [f"without rank {lacking}"] if lacking else []
        of += [counted(len(self.findings), "finding")] if self.findings else []
        return f"{iterations(self.iterations)}: {', '.join(said)} ({'; '.join(of)})"


def read(folder: Path) -> WindowSummary:
    """The summary that lies in a window's folder.

    Raises:
        OSError, ValueError, TypeError: there is none.
    """
    return WindowSummary(**json.loads((folder / ARTIFACTS / SUMMARY_FILE).read_text()))


def summarise(analysis: Analysis, window: WindowName, planned: Sequence[int]) -> WindowSummary:
    """The part of an analysis that is logged.

    Args:
        analysis: of the window's traces.
        window: which.
        planned: ranks that were to be recorded.
    """
    there = {rank.rank for rank in analysis.ranks}
    return WindowSummary(
        first=window.first,
        last=window.last,
        scalars=_scalars(analysis),
        ranks=[_row(rank) for rank in analysis.ranks],
        missing_ranks=[rank for rank in planned if rank not in there],
        findings=[[f.severity, f.code, f.title, f.advice] for f in analysis.findings],
    )


def _scalars(analysis: Analysis) -> dict[str, float]:
    summary, values = analysis.summary, {"profile/ranks": float(len(analysis.ranks))}
    if summary.iteration_ns is not None:
        values["profile/iteration_ms"] = summary.iteration_ns / 1e6
    if summary.shares is not None:
        for part in (*BREAKDOWN_PARTS, "overlapped_communication"):
            values[f"profile/{part}_pct"] = 100.0 * getattr(summary.shares, part)
    for dimension, share in summary.dimensions.items():
        values[f"profile/exposed_{dimension}_pct"] = 100.0 * share
    bubbles = [step.bubble_share for rank in analysis.ranks for step in rank.pipeline]
    if bubbles:
        values["profile/pipeline_bubble_pct"] = 100.0 * sum(bubbles) / len(bubbles)
    if analysis.mfu.value is not None:
        values["profile/mfu_pct"] = 100.0 * analysis.mfu.value
    if analysis.stragglers and analysis.stragglers[0].imposed_wait_ns > 0:
        values["profile/straggler_rank"] = analysis.stragglers[0].rank
        values["profile/straggler_wait_ms"] = analysis.stragglers[0].imposed_wait_ns / 1e6
    return values


def _row(rank: RankResult) -> list[float | None]:
    lengths = [step.end_ns - step.start_ns for step in rank.steps]
    parts = [
        None if rank.breakdown is None else 100.0 * getattr(rank.breakdown, part) / rank.window_ns
        for part in BREAKDOWN_PARTS
    ]
    return [
        rank.rank,
        sum(lengths) / len(lengths) / 1e6 if lengths else None,
        *parts,
        None if rank.wait_ns is None else rank.wait_ns / 1e6,
    ]


def wait_for_traces(
    folder: Path,
    ranks: Sequence[int],
    seconds: float,
    quiet_seconds: float = math.inf,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> dict[int, Path]:
    """Rank -> its trace, when all are there, or those that are when there is no more hope.

    A trace gets its name when it is complete, so what has one can be read.

    Args:
        folder: of the window.
        ranks: whose traces.
        seconds: how long to wait at most.
        quiet_seconds: how long to wait while no file appears or grows: a rank that failed to record
            writes none.
    """
    deadline = clock() + seconds
    seen, since = _files(folder), clock()
    while True:
        there = {name.rank: file for file in seen if (name := TraceName.parse(file.name))}
        found = {rank: there[rank] for rank in ranks if rank in there}
        if len(found) == len(ranks) or clock() >= min(deadline, since + quiet_seconds):
            return found
        sleep(_POLL_SECONDS)
        files = _files(folder)
        if files != seen:
            seen, since = files, clock()


def wait_for_partials(
    traces: Sequence[Path],
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Wait for the analysis of each trace, which its own rank makes, while one after another comes.

    What is not there then is analysed here.
    """
    missing, since = len(traces) + 1, clock()
    while missing and clock() < since + _QUIET_PARTIALS_SECONDS:
        left = sum(not found_analysis_of(trace).exists() for trace in traces)
        if left < missing:
            missing, since = left, clock()
        else:
            sleep(_POLL_SECONDS)


def _files(folder: Path) -> dict[Path, int]:
    """Files in a folder and their sizes."""
    found: dict[Path, int] = {}
    # Listing, unlike asking for one name, makes NFS look again.
    with suppress(OSError):
        for file in sorted(folder.iterdir()):
            with suppress(OSError):  # renamed meanwhile
                found[file] = file.stat().st_size
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module; one line on stdout tells the training process what there is."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, nargs="+", required=True)
    parser.add_argument("--wait", type=float, required=True)
    parser.add_argument("--elsewhere", action="store_true", help="Traces grow in another folder.")
    parser.add_argument("--partials", action="store_true", help="Ranks analyse their own traces.")
    parser.add_argument("--analyse", action="store_true")
    options = parser.parse_args(arguments)
    answer_training(lambda answer: _summarise_window(options, answer))


def _summarise_window(options: argparse.Namespace, answer: dict[str, Any]) -> None:
    quiet = math.inf if options.elsewhere else _QUIET_SECONDS
    traces = wait_for_traces(options.folder, options.ranks, options.wait, quiet)
    answer["traces"] = [str(path) for path in traces.values()]
    if options.analyse and traces:
        if options.partials:
            wait_for_partials(list(traces.values()))
        _analyse(options.folder, traces, options.ranks)
        answer["summary"] = True


def _analyse(folder: Path, traces: dict[int, Path], planned: Sequence[int]) -> None:
    from megatron.torch_trace.analysis.run.analyse import analyze

    window = WindowName.parse(folder.name)
    assert window is not None
    jobs = min(_MOST_JOBS, max(1, len(os.sched_getaffinity(0)) // _CORES_PER_JOB))
    summary = summarise(analyze(traces.values(), jobs=jobs), window, planned)
    target = folder / ARTIFACTS / SUMMARY_FILE
    target.parent.mkdir(exist_ok=True)
    with atomic_path(target) as unfinished:
        unfinished.write_text(json.dumps(asdict(summary), indent=1, allow_nan=False) + "\n")


if __name__ == "__main__":
    be_killed_first()
    main()
