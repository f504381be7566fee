# SPDX-License-Identifier: Apache-2.0
"""Meta's Holistic Trace Analysis reads what we write, and sees in it what it sees in the original.

It is installed beside the project (wheels.py) and runs in a process of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import wheels

from megatron.torch_trace.files.sources import find_traces, ranked
from megatron.torch_trace.rewrite.merge.merge import merge
from megatron.torch_trace.rewrite.selection import Selection
from megatron.torch_trace.rewrite.slim.slim import slim

ROOT = Path(__file__).parents[2]
WINDOW = ROOT / "tests" / "data" / "tp2pp2"

SCRIPT = """
import json, sys
from hta.trace_analysis import TraceAnalysis

source = json.loads(sys.argv[1])
if isinstance(source, str):
    analysis = TraceAnalysis(trace_dir=source)
else:
    analysis = TraceAnalysis(trace_files={int(rank): file for rank, file in source.items()})
overlap = analysis.get_comm_comp_overlap(visualize=False)
breakdown = analysis.get_temporal_breakdown(visualize=False).merge(overlap, on="rank")
seen = {}
for rank in analysis.t.get_all_traces():
    events = analysis.t.get_trace(rank)
    # Where there are operators, HTA also counts annotations on the GPU as its work.
    on_gpu = events[(events["stream"] >= 0) & (events["correlation"] >= 0)]
    seen[int(rank)] = {
        "events": len(events),
        "kernels": len(on_gpu),
        "kernel_time": int(on_gpu["dur"].sum()),
        "breakdown": breakdown[breakdown["rank"] == rank].iloc[0].to_dict(),
    }
print(json.dumps(seen))
"""

Seen = dict[str, dict[str, Any]]


@pytest.fixture(scope="session")
def hta() -> Callable[[Path | dict[int, Path]], Seen]:
    """What HTA sees in a folder, or in files whose ranks we tell it."""
    target = wheels.hta()

    def load(source: Path | dict[int, Path]) -> Seen:
        files = source if isinstance(source, Path) else {k: str(v) for k, v in source.items()}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, json.dumps(files, default=str)],
            env={**os.environ, "PYTHONPATH": str(target)},
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        seen: Seen = json.loads(done.stdout.splitlines()[-1])
        return seen

    return load


@pytest.fixture(scope="session")
def recorded(hta: Callable[[Path], Seen]) -> Seen:
    """What HTA sees in the traces as torch wrote them."""
    return hta(WINDOW)


def test_hta_reads_a_window_with_everything_that_lies_in_it(
    hta: Callable[[Path], Seen], recorded: Seen, tmp_path: Path
) -> None:
    window = tmp_path / "20261127-221810" / "iter-0000006-0000007"
    shutil.copytree(WINDOW, window)
    (window / "artifacts").mkdir()
    (window / "artifacts" / "rank-0.key_averages.txt").write_text("aten::mm 1 ms")
    (window.parent / "run.json").write_text("{}")
    assert list(recorded) == ["0", "1", "2", "3"]
    assert hta(window) == recorded


@pytest.mark.parametrize(
    "selection",
    [Selection(), Selection().with_preset("perfetto"), Selection(drop=frozenset({"args"}))],
    ids=["everything", "perfetto", "without args"],
)
def test_hta_sees_the_same_in_what_slim_writes(
    hta: Callable[[Path], Seen], recorded: Seen, tmp_path: Path, selection: Selection
) -> None:
    for path in sorted(WINDOW.iterdir())[:2]:
        slim(path, tmp_path / path.name, selection)
    assert hta(tmp_path) == {rank: recorded[rank] for rank in ("0", "1")}


def test_hta_sees_the_same_gpu_work_in_a_trace_for_overlap(
    hta: Callable[[Path], Seen], recorded: Seen, tmp_path: Path
) -> None:
    name = "rank-0.pt.trace.json.gz"
    slim(WINDOW / name, tmp_path / name, Selection().with_preset("overlap"))
    seen = hta(tmp_path)
    assert seen["0"]["events"] < recorded["0"]["events"] / 2
    for measure in ("kernels", "kernel_time"):
        assert seen["0"][measure] == recorded["0"][measure], measure


def test_hta_loads_what_merge_writes(
    hta: Callable[[dict[int, Path]], Seen], recorded: Seen, tmp_path: Path
) -> None:
    traces = ranked(find_traces([WINDOW]).traces)
    merge(traces, tmp_path / "all.json.gz")
    (merged,) = hta({0: tmp_path / "all.json.gz"}).values()
    for measure in ("events", "kernels", "kernel_time"):
        assert merged[measure] == sum(rank[measure] for rank in recorded.values()), measure
