# SPDX-License-Identifier: Apache-2.0
"""What `analyze` and `whatif` say of one recorded fault, and whether that is right."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from megatron import torch_trace
from megatron.torch_trace.errors import TorchTraceError

WITHIN = 0.1
NAMES = {
    "forward": ("forward micro-batch",),
    "backward": ("backward micro-batch",),
    "data": ("forward micro-batch",),
    "optimizer": ("optimizer",),
    "gpu": ("forward micro-batch",),
}
"""What the span of a fault may be called; `before` is in none of the others."""
MICRO_BATCHED = ("forward", "backward", "data", "gpu")


@dataclass(frozen=True)
class Answer:
    """What is said of a window; times are ns an iteration, None where nothing is said.

    Args:
        position: of the finding, from 1.
        name: the span that it names, or the kernel.
        gain_ns, error_ns, undisturbed_gain_ns: of the finding.
        asked_ns: the gain that `whatif` tells of the change that mends the fault.
        notes: what went wrong.
    """

    position: int | None = None
    name: str = ""
    gain_ns: int | None = None
    error_ns: int | None = None
    undisturbed_gain_ns: int | None = None
    asked_ns: int | None = None
    notes: str = ""

    @property
    def foreseen_ns(self) -> int | None:
        """The gain without the profiler where it is told, else the one as recorded."""
        return self.gain_ns if self.undisturbed_gain_ns is None else self.undisturbed_gain_ns

    def names(self, kind: str, micro_batch: int) -> bool:
        """Whether the span is the right one."""
        if kind == "before":
            every = [name for many in NAMES.values() for name in many]
            return bool(self.name) and not self.name.startswith(tuple(every))
        number = self.name.rpartition(" ")[2]
        right = not (number.isdigit() and kind in MICRO_BATCHED) or int(number) == micro_batch
        return self.name.startswith(NAMES[kind]) and right

    def is_close(self, truth_ns: float) -> bool:
        """Whether the gain is within a tenth of what mending the fault gained."""
        return self.foreseen_ns is not None and (
            abs(self.foreseen_ns - truth_ns) <= WITHIN * abs(truth_ns)
        )


def answer_of(folder: Path, kind: str, rank: int) -> Answer:
    """Of a window: the first finding whose cause is this rank's.

    Args:
        folder: of its traces.
        kind: of the fault.
        rank: that is late.
    """
    change = f"--{'gpu' if kind == 'gpu' else 'rank'} {rank}=median"
    asked: int | None = None
    notes = ""
    try:
        told = torch_trace.whatif(folder, change, jobs=1)
        asked = told.candidates[0].gain_ns
        analysis = torch_trace.analyze(folder, gains=True, use_partials=False, jobs=1)
    except TorchTraceError as error:
        return Answer(asked_ns=asked, notes=str(error))
    for position, one in enumerate(analysis.findings, 1):
        causes = one.evidence.get("causes") or []
        if causes and causes[0]["rank"] == rank:
            return Answer(
                position, causes[0]["name"],
                one.gain_ns, one.gain_error_ns, one.undisturbed_gain_ns, asked,
            )  # fmt: skip
        if not notes and one.code == "straggler":
            notes = one.title
    return Answer(asked_ns=asked, notes=notes or "no finding names a rank")
