# SPDX-License-Identifier: Apache-2.0
"""What should be so after a training of `memory_faults.py`, held against what it left."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memory_trainings import LEAK, Training

FIRST, LAST = 3, 8
"""Iterations of the window."""
MICROBATCHES = 8
_MOST_OFF, _MOST_UNKNOWN = 0.01, 0.02
_GIB = 1 << 30


@dataclass
class Verdict:
    """What a part has shown.

    Args:
        figures: in words.
        faults: what is not as it should be.
    """

    figures: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def hold(self, figure: str, *, right: bool) -> None:
        """One figure more, and whether it is right."""
        (self.figures if right else self.faults).append(figure)


def peaks(training: Training, verdict: Verdict, older: int = 0) -> None:
    """Categories add up to what the allocator counted, and little is unknown.

    Args:
        training: has ended.
        verdict: gets the figures.
        older: bytes that were kept before the window began, of which nothing can be known.
    """
    from megatron import torch_trace

    found = _snapshots(training)
    verdict.hold(
        f"{len(found)} of {len(training.processes)} snapshots",
        right=len(found) == len(training.processes),
    )
    for number, path in enumerate(found):
        (answer, *_) = torch_trace.memory(path)
        counted = training.facts[number]["iterations"][FIRST - 1 : LAST]
        peak = max(one["peak_bytes"] for one in counted)
        held = {one.value: size for one, size in answer.categories.items() if size}
        off = sum(held.values()) / peak - 1
        unknown = (held.get("unknown", 0) - older) / answer.peak_bytes
        verdict.hold(
            f"rank {number}: categories {sum(held.values()) / 1e9:.3f} GB, allocator "
            f"{peak / 1e9:.3f} GB ({off:+.2%})",
            right=abs(off) <= _MOST_OFF,
        )
        verdict.hold(f"unknown {unknown:.1%}", right=unknown <= _MOST_UNKNOWN)
        missing = {"parameters", "gradients", "optimizer_state"} - held.keys()
        verdict.hold(f"without {', '.join(missing)}" if missing else "", right=not missing)


def leak(training: Training, verdict: Verdict) -> None:
    """The finding names the code that keeps memory, and how much."""
    from megatron import torch_trace
    from megatron.torch_trace.allocator.findings import memory_findings

    peaks(training, verdict, older=(FIRST - 1) * LEAK)
    (answer, *_) = torch_trace.memory(_snapshots(training)[0])
    found = [one for one in memory_findings(answer) if one.code == "memory_growth"]
    verdict.hold(f"{len(found)} finding of growth", right=len(found) == 1)
    for one in found:
        size, stack = one.evidence["bytes_per_step"], one.evidence["stack"]
        verdict.hold(f"{size / LEAK:.3f} of 8 MiB a step", right=abs(size / LEAK - 1) < 0.01)
        verdict.hold(f"by {stack[0]}", right="keeps_one_more" in stack[0])


def ramp(training: Training, verdict: Verdict) -> None:
    """Stage 0 of two keeps two micro-batches of layers again and again, stage 1 keeps one."""
    peaks(training, verdict)
    steps = LAST - FIRST + 1
    for stage, path in enumerate(_snapshots(training)):
        heights = _heights(path, 2 - stage)
        wanted = [2] * (MICROBATCHES - 1) if stage == 0 else [1] * MICROBATCHES
        verdict.hold(
            f"stage {stage}: {len(heights)} summits of {sorted(set(heights))} micro-batches in "
            f"{steps} iterations",
            right=heights == wanted * steps,
        )


def _heights(path: Path, kept: int) -> list[int]:
    """The summits of a stage's activations of layers, in micro-batches.

    Args:
        path: a snapshot.
        kept: micro-batches that the stage keeps at most, by the schedule.
    """
    import numpy as np

    from megatron.torch_trace.allocator.answer import answers_of
    from megatron.torch_trace.allocator.fit.scaling import matching
    from megatron.torch_trace.allocator.purpose.categories import CATEGORIES, Category

    devices: list[Any] = []
    answers_of(path, on_device=devices.append)
    memory = max(devices, key=lambda one: one.usage.peak_bytes)
    rows = memory.categories == CATEGORIES.index(Category.ACTIVATIONS)
    rows = rows & matching(memory, lambda frame: "transformer_layer.py" in frame)
    change = np.zeros(len(memory.history) + 2, dtype=np.int64)
    np.add.at(change, memory.allocations.begin[rows] + 1, memory.allocations.size[rows])
    np.subtract.at(change, memory.allocations.end[rows] + 1, memory.allocations.size[rows])
    curve = np.cumsum(change)
    each = curve.max() / kept
    # A summit is left when half a micro-batch is gone.
    summits: list[int] = []
    top, rising = 0.0, True
    lowest = 0.0
    for height in (curve / each).tolist():
        if rising:
            top = max(top, height)
            if height < top - 0.5:
                summits.append(round(top))
                rising, lowest = False, height
        else:
            lowest = min(lowest, height)
            if height > lowest + 0.5:
                rising, top = True, height
    return summits


def expandable(training: Training, verdict: Verdict) -> None:
    """Segments grow, and the numbers are right still."""
    from megatron import torch_trace

    peaks(training, verdict)
    (answer, *_) = torch_trace.memory(_snapshots(training)[0])
    verdict.hold(f"expandable: {answer.expandable}", right=answer.expandable)
    reserved = max(one["reserved_bytes"] for one in training.facts[0]["iterations"])
    off = answer.peak_reserved / reserved - 1
    verdict.hold(f"reserved {off:+.2%}", right=abs(off) <= _MOST_OFF)


def no_caching(training: Training, verdict: Verdict) -> None:
    """Nothing is recorded, a line says why, and training goes on."""
    lines = _said(training, "memory-history")
    verdict.hold(f"{len(lines)} lines say why", right=len(lines) == 2)
    verdict.hold(f"{len(_snapshots(training))} snapshots", right=not _snapshots(training))


def history(training: Training, verdict: Verdict) -> None:
    """The user's own history stays on, and the snapshot is taken from it."""
    peaks(training, verdict)
    lines = _said(training, "memory-history")
    verdict.hold(f"{len(lines)} line about whose it is", right=len(lines) == 1)
    after = training.facts[0]["iterations"][-1]["history"]
    verdict.hold(f"on after the window: {after}", right=after is True)


def out_of_memory(training: Training, verdict: Verdict) -> None:
    """The paragraph says what torch's own error says."""
    verdict.hold("torch raised it", right=training.failed_for_memory)
    lines = _said(training, "out-of-memory")
    verdict.hold(f"{len(lines)} lines: {' / '.join(lines)[:700]}", right=len(lines) >= 5)
    error = re.search(r"OutOfMemoryError: CUDA out of memory.*", training.log)
    texts = list(training.folder.rglob("*.live_bytes.json"))
    if not error or not texts:
        verdict.hold("no error of torch, or no file beside the snapshot", right=False)
        return
    facts = json.loads(texts[0].read_text())
    for name, pattern in _OF_TORCHS_ERROR.items():
        found = re.search(pattern, error[0])
        size = float(found[1]) * (_GIB if found[2] == "GiB" else 1 << 20) if found else 0.0
        verdict.hold(
            f"{name} {facts[name] / 1e9:.3f} GB, torch's error {size / 1e9:.3f} GB",
            right=abs(facts[name] - size) <= 0.01 * _GIB,
        )
    free = facts["free_bytes"]
    verdict.hold(f"free {free / 1e9:.3f} GB", right=free <= facts["total_bytes"])
    verdict.hold(f"in {facts['phase']}", right="micro-batch" in facts["phase"])


_OF_TORCHS_ERROR = {
    "requested_bytes": r"Tried to allocate ([\d.]+) (GiB|MiB)",
    "in_use_bytes": r"([\d.]+) (GiB|MiB) is allocated by PyTorch",
    "total_bytes": r"([\d.]+) (GiB|MiB) allowed",
}


def _said(training: Training, slug: str) -> list[str]:
    return re.findall(rf"^\[torch-profile {slug}\] (.*)$", training.log, re.MULTILINE)


def _snapshots(training: Training) -> list[Path]:
    return sorted(training.folder.rglob("iter-*/artifacts/*.memory_snapshot.pickle"))


def losses_of(training: Training) -> list[list[str]]:
    return [one.get("losses", []) for one in training.facts[-1]["iterations"]]
