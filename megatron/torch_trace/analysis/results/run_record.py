# SPDX-License-Identifier: Apache-2.0
"""What lies beside the traces: `run.json`, and the metrics of the whole run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.files.json_object import read_object
from megatron.torch_trace.format.file_names import METRICS_FILE, RUN_FILE
from megatron.torch_trace.format.json_text import value_of

_MOST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Series:
    """One metric over the run.

    Args:
        name: its key: `gpu/power_w`.
        iterations, values: where it was logged, ascending, and what it was.
    """

    name: str
    iterations: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run's folder.

    Args:
        folder: the folder.
        run: `run.json`; empty if it is not there or cannot be read.
        metrics: every key of `metrics.jsonl`, by name.
        faults: what could not be read, one sentence each.
    """

    folder: str
    run: Mapping[str, Any]
    metrics: tuple[Series, ...]
    faults: tuple[str, ...] = ()


def find_run(analysis: Analysis) -> RunRecord | None:
    """The record of the run that the analysed traces are of; None if they are not in its folder."""
    folders = {Path(rank.file).absolute().parent.parent for rank in analysis.ranks}
    if len(folders) != 1:
        return None
    record = read_run(folders.pop())
    return record if record.run or record.metrics or record.faults else None


def read_run(folder: Path) -> RunRecord:
    """The record of a run, from its folder; empty where nothing is there."""
    faults: list[str] = []
    run = _read_run(folder / RUN_FILE, faults)
    metrics = _read_metrics(folder / METRICS_FILE, faults)
    return RunRecord(str(folder), run, metrics, tuple(faults))


def _read_run(path: Path, faults: list[str]) -> dict[str, Any]:
    try:
        return read_object(path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        faults.append(f"{path}: cannot be read ({error}).")
        return {}


def _read_metrics(path: Path, faults: list[str]) -> tuple[Series, ...]:
    """A killed run may have left half a line; of an iteration logged twice the last one counts."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            faults.append(f"{path}: larger than {_MOST_BYTES >> 20} MiB, not read.")
            return ()
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as error:
        faults.append(f"{path}: cannot be read ({error}).")
        return ()
    found: dict[str, dict[int, float]] = {}
    broken = 0
    for line in filter(None, lines):
        try:
            values = value_of(line)
            iteration = int(values.pop("iteration"))
            for name, value in values.items():
                found.setdefault(name, {})[iteration] = float(value)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            broken += 1
    if broken:
        faults.append(f"{path}: {broken:,} of {len(lines):,} lines cannot be read.")
    return tuple(
        Series(name, tuple(sorted(points)), tuple(points[at] for at in sorted(points)))
        for name, points in sorted(found.items())
    )
