# SPDX-License-Identifier: Apache-2.0
"""Names of runs, windows and files: one template and one parser, used by capture and by analysis.

    <root>/20261127-221810-j4711/                     a run: one launch, the same name on all ranks
        run.json                                      what the run was
        ended.json                                    when training left its loop, or its error
        metrics.jsonl                                 numbers of the whole run
        requests/                                     windows that somebody asks for (requests.py)
        out-of-memory/                                rank-07.iter-0000009.memory_snapshot.pickle
        iter-0000003-0000004/                         a window: global iterations, from 1, inclusive
            rank-07.pt.trace.json.gz                  a trace; rank zero-padded to the world's width
            rank-07.partial.pt.trace.json.gz          a trace of a window that was cut short
            rank-07.pt.trace.json.gz.4242.json.tmp    a trace on its way, as text
            rank-07.pt.trace.json.gz.4242.tmp         the same, compressed
            artifacts/rank-07.memory_snapshot.pickle    memory of the window; beside it its owners
            artifacts/rank-07.key_averages.txt        everything else of that rank and window
            artifacts/rank-07.pt.trace.json.gz.analysis.parquet    its analysis, kept
            artifacts/summary.json                    what was logged of the window

Only traces lie in a window's folder itself, because HTA and TensorBoard read every file there.
On a node's scratch folder each trace grows in a folder of its own, beside the name of the window's
folder that it goes to:

    <scratch>/20261127-221810-j4711.iter-0000003-0000004.rank-07/
        destination.txt
        rank-07.pt.trace.json.gz.4242.json.tmp

Nothing else in the project builds or splits these names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from megatron.torch_trace.format.rank_ranges import MOST_RANKS
from megatron.torch_trace.format.suffixes import (
    COMPRESSION_SUFFIXES,
    KEPT_ANALYSIS_SUFFIX,
    OLD_KEPT_ANALYSIS_SUFFIX,
    TEMPORARY_SUFFIX,
    TRACE_SUFFIX,
)

RUN_FILE = "run.json"
ENDED_FILE = "ended.json"
"""Of a training that left its loop; one that was killed leaves none."""
METRICS_FILE = "metrics.jsonl"
ARTIFACTS = "artifacts"
PARTIAL = ".partial"
"""In the name of a trace of a window that was cut short."""
OUT_OF_MEMORY = "out-of-memory"
SUMMARY_FILE = "summary.json"
DESTINATION_FILE = "destination.txt"

_RUN = re.compile(r"(?P<start>\d{8}-\d{6})(?:-j(?P<job>[\w.+-]+))?")
_WINDOW = re.compile(r"iter-(?P<first>\d{7,})(?:-(?P<last>\d{7,}))?")
_TRACE = re.compile(
    r"rank-(?P<rank>\d+)(?P<partial>\.partial)?\.pt\.trace\.json(?P<compression>\.gz|\.zst)?"
)
# Kineto itself writes to <path>.tmp first, in newer versions.
_UNFINISHED = re.compile(r"(?P<trace>.+?)\.(?P<pid>\d+)(?P<raw>\.json(?:\.tmp)?)?\.tmp")


@dataclass(frozen=True, slots=True)
class RunName:
    """The folder of one launch.

    Args:
        start: local time of rank 0 when the launch began, to the second.
        job: SLURM job id, or None outside SLURM.
    """

    start: datetime
    job: str | None = None

    def __str__(self) -> str:
        return f"{self.start:%Y%m%d-%H%M%S}" + (f"-j{self.job}" if self.job else "")

    @classmethod
    def parse(cls, name: str) -> RunName | None:
        """The run that a folder's name tells, or None if it is no run folder."""
        match = _RUN.fullmatch(name)
        if not match:
            return None
        try:
            start = datetime.strptime(match["start"], "%Y%m%d-%H%M%S")
        except ValueError:
            return None
        return cls(start, match["job"])


@dataclass(frozen=True, slots=True, order=True)
class WindowName:
    """The folder of one window: global iterations `first` to `last`, 1-based, both included."""

    first: int
    last: int

    def __str__(self) -> str:
        if self.first == self.last:
            return f"iter-{self.first:07d}"
        return f"iter-{self.first:07d}-{self.last:07d}"

    @classmethod
    def parse(cls, name: str) -> WindowName | None:
        """The window that a folder's name tells, or None if it is no window folder."""
        match = _WINDOW.fullmatch(name)
        if not match:
            return None
        first = int(match["first"])
        return cls(first, int(match["last"] or first))


@dataclass(frozen=True, slots=True)
class TraceName:
    """A trace file inside a window's folder.

    Args:
        rank: global rank.
        world_size: number of ranks, for the width of the number; None when parsed from a name.
        compression: one of `COMPRESSION_SUFFIXES`.
        partial: the window was cut short.
    """

    rank: int
    world_size: int | None = None
    compression: str = "gzip"
    partial: bool = False

    @property
    def stem(self) -> str:
        """`rank-07`: what all files of this rank in this window begin with."""
        width = len(str(self.world_size - 1)) if self.world_size else 1
        return f"rank-{self.rank:0{width}d}"

    def __str__(self) -> str:
        partial = PARTIAL if self.partial else ""
        return f"{self.stem}{partial}{TRACE_SUFFIX}{COMPRESSION_SUFFIXES[self.compression]}"

    def artifact(self, suffix: str) -> Path:
        """Path below the window's folder: `artifacts/rank-07.<suffix>`."""
        return Path(ARTIFACTS) / f"{self.stem}.{suffix}"

    @classmethod
    def parse(cls, name: str) -> TraceName | None:
        """The trace that a file's name tells, or None if it is not one of ours."""
        match = _TRACE.fullmatch(name)
        if not match or int(match["rank"][:20]) >= MOST_RANKS:
            return None
        suffix = match["compression"] or ""
        compression = next(k for k, v in COMPRESSION_SUFFIXES.items() if v == suffix)
        return cls(int(match["rank"]), None, compression, match["partial"] is not None)


@dataclass(frozen=True, slots=True)
class UnfinishedName:
    """A trace on its way.

    Args:
        trace: the name it will have.
        pid: the process that writes it, so that no two write one file.
        raw: it is Kineto's text; else the compressed file.
    """

    trace: str
    pid: int
    raw: bool

    def __str__(self) -> str:
        return f"{self.trace}.{self.pid}{'.json' if self.raw else ''}{TEMPORARY_SUFFIX}"

    @classmethod
    def parse(cls, name: str) -> UnfinishedName | None:
        """The trace that a temporary file will be, or None if it is none of ours."""
        match = _UNFINISHED.fullmatch(name)
        if not match or TraceName.parse(match["trace"]) is None:
            return None
        return cls(match["trace"], int(match["pid"]), match["raw"] is not None)


def cut_short(trace: Path) -> Path:
    """The name of the same trace where it holds only a part of its window."""
    name = trace.name.replace(PARTIAL, "").replace(TRACE_SUFFIX, f"{PARTIAL}{TRACE_SUFFIX}")
    return trace.with_name(name)


def kept_analysis_of(trace: Path) -> Path:
    """Where the analysis of one rank is kept, whatever its trace is called."""
    return trace.parent / ARTIFACTS / f"{trace.name}{KEPT_ANALYSIS_SUFFIX}"


def found_analysis_of(trace: Path) -> Path:
    """The same to read from: by its old name where only that is there."""
    path = kept_analysis_of(trace)
    old = path.with_name(f"{trace.name}{OLD_KEPT_ANALYSIS_SUFFIX}")
    return old if not path.is_file() and old.is_file() else path


def is_kept_analysis(path: Path) -> bool:
    """Whether a file's name is that of a kept analysis, of now or of old."""
    return path.name.endswith((KEPT_ANALYSIS_SUFFIX, OLD_KEPT_ANALYSIS_SUFFIX))


def trace_of(analysis: Path) -> Path:
    """The trace, there or not, whose kept analysis `analysis` is by its name."""
    name = analysis.name.removesuffix(KEPT_ANALYSIS_SUFFIX).removesuffix(OLD_KEPT_ANALYSIS_SUFFIX)
    return analysis.parent.parent / name
