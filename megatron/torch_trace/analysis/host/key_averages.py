# SPDX-License-Identifier: Apache-2.0
"""Sums by name over all operators, annotations, calls and GPU rows: torch's `key_averages()`.

The same rows and the same sums, from the trace alone and in whole nanoseconds. GPU work belongs to
the operator with its `External id`. What torch does not tell in the trace is left out: FLOPs, and
operators that begin on one thread and end on another, which count as any other here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.analysis.host.call_tree import CallTree
from megatron.torch_trace.columns.call_tables import (
    ANNOTATION,
    GPU_ANNOTATION,
    MEMORY_EVENT,
    PYTHON,
)
from megatron.torch_trace.columns.intervals import Ints

_STEP = "ProfilerStep#"
_ANY_STEP = "ProfilerStep*"


@dataclass(frozen=True, slots=True)
class KeyAverage:
    """All slices of one name.

    Args:
        on_gpu: rows of the GPU; the same name may be on the CPU too.
        annotation: not work, on either.
        calls: how many.
        cpu_ns, self_cpu_ns: of the slices, and without those inside of them.
        gpu_ns, self_gpu_ns: GPU work launched inside of them, and by themselves; of rows of the
            GPU their own time.
        cpu_bytes, gpu_bytes: memory taken less given back meanwhile (`profile_memory`).
        self_cpu_bytes, self_gpu_bytes: without the slices inside.
    """

    name: str
    on_gpu: bool
    annotation: bool
    calls: int
    cpu_ns: int = 0
    self_cpu_ns: int = 0
    gpu_ns: int = 0
    self_gpu_ns: int = 0
    cpu_bytes: int = 0
    self_cpu_bytes: int = 0
    gpu_bytes: int = 0
    self_gpu_bytes: int = 0


def key_averages(tree: CallTree) -> tuple[KeyAverage, ...]:
    """Every name, by the time of its own in ns: on the GPU if there is any, else on the CPU."""
    found = [*_of_the_cpu(tree), *_of_the_gpu(tree), *_outside_of_all(tree)]
    gpu = tree.has_gpu

    def order(row: KeyAverage) -> tuple[int, int, str]:
        return (-row.self_gpu_ns if gpu else 0, -row.self_cpu_ns, row.name)

    return tuple(sorted(found, key=order))


def _of_the_cpu(tree: CallTree) -> list[KeyAverage]:
    kind, inside = tree.cpu["kind"], tree.inside()
    own_gpu = tree.gpu_time()
    sums = {
        "cpu_ns": tree.duration,
        "self_cpu_ns": tree.own(tree.duration, inside),
        "self_gpu_ns": own_gpu,
        "gpu_ns": tree.with_inner(own_gpu, inside),
    }
    for on_gpu, of in enumerate(("cpu_bytes", "gpu_bytes")):
        if (tree.memory["kind"] == on_gpu).any():
            sums[of] = _bytes_in(tree, on_gpu)
            sums[f"self_{of}"] = tree.own(sums[of], inside)
    rows = np.flatnonzero(~tree.repeats & (kind != PYTHON))
    return _summed(tree, tree.cpu, rows, kind[rows] == ANNOTATION, sums, on_gpu=False)


def _of_the_gpu(tree: CallTree) -> list[KeyAverage]:
    time = tree.gpu["end"] - tree.gpu["start"]
    rows = np.arange(len(time))
    sums = {"gpu_ns": time, "self_gpu_ns": time}
    return _summed(tree, tree.gpu, rows, tree.gpu["kind"] == GPU_ANNOTATION, sums, on_gpu=True)


def _summed(
    tree: CallTree,
    table: dict[str, Ints],
    rows: Ints,
    annotation: Ints,
    sums: dict[str, Ints],
    *,
    on_gpu: bool,
) -> list[KeyAverage]:
    """Sums of some rows by name and by whether they are annotations."""
    if not len(rows):
        return []
    codes: dict[str, int] = {}
    keys = [
        codes.setdefault(_ANY_STEP if name.startswith(_STEP) else name, len(codes))
        for name in tree.names
    ]
    key = np.array(keys, dtype=np.int64)[table["name"][rows]] * 2 + annotation
    present, group, calls = np.unique(key, return_inverse=True, return_counts=True)
    columns = {}
    for what, values in sums.items():
        columns[what] = np.zeros(len(present), dtype=np.int64)
        np.add.at(columns[what], group, values[rows])
    names = list(codes)
    return [
        KeyAverage(
            names[code // 2],
            on_gpu,
            bool(code % 2),
            count,
            **{what: int(column[number]) for what, column in columns.items()},
        )
        for number, (code, count) in enumerate(zip(present.tolist(), calls.tolist(), strict=True))
    ]


def _bytes_in(tree: CallTree, on_gpu: int) -> Ints:
    """Of each row of the CPU, memory taken less given back from its start to its end."""
    mine = np.flatnonzero(tree.memory["kind"] == on_gpu)
    mine = mine[np.argsort(tree.memory["start"][mine], kind="stable")]
    times = tree.memory["start"][mine]
    so_far = np.append(0, np.cumsum(tree.memory["bytes"][mine]))
    begin = np.searchsorted(times, tree.cpu["start"], side="left")
    end = np.searchsorted(times, tree.cpu["end"], side="right")
    found: Ints = so_far[end] - so_far[begin]
    return found


def _outside_of_all(tree: CallTree) -> list[KeyAverage]:
    """Memory events at a time at which no slice runs, as one row."""
    times = tree.memory["start"]
    last_end = np.maximum.accumulate(tree.cpu["end"]) if len(tree.parent) else tree.cpu["end"]
    begun = np.searchsorted(tree.cpu["start"], times, side="right")
    outside = begun == 0
    outside[~outside] = last_end[begun[~outside] - 1] < times[~outside]
    if not outside.any():
        return []
    size = [
        int(tree.memory["bytes"][outside & (tree.memory["kind"] == on_gpu)].sum())
        for on_gpu in (0, 1)
    ]
    return [
        KeyAverage(
            MEMORY_EVENT,
            False,
            False,
            int(outside.sum()),
            cpu_bytes=size[0],
            self_cpu_bytes=size[0],
            gpu_bytes=size[1],
            self_gpu_bytes=size[1],
        )
    ]
