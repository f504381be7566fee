# SPDX-License-Identifier: Apache-2.0
"""Whether what the GPU did is known, and why not: for `check`, `info` and `analyze` alike."""

from __future__ import annotations

from dataclasses import dataclass

from megatron.torch_trace.gpu_record.clock import ClockOffset
from megatron.torch_trace.gpu_record.other_devices import OtherDevice
from megatron.torch_trace.wording import counted


@dataclass(frozen=True, slots=True)
class GpuRecord:
    """What was recorded of the GPU.

    Args:
        gpu_events: kernels, copies and memsets.
        kernel_launches: calls that launch kernels or graphs, without those into a graph that was
            being captured; without_kernel: those of them after which nothing ran.
        offset: by how much the GPU's clock is off; None if nothing says that it is.
        other: the device, if it is no CUDA or ROCm GPU.
    """

    gpu_events: int
    kernel_launches: int
    without_kernel: int
    offset: ClockOffset | None = None
    other: OtherDevice | None = None

    @property
    def is_missing(self) -> bool:
        """Kernels were launched, but nothing that ran was recorded."""
        return self.kernel_launches > 0 and not self.gpu_events and self.other is None

    @property
    def is_incomplete(self) -> bool:
        """More than one launch of kernels in twenty has nothing that ran."""
        if self.other is not None and not self.gpu_events:
            return False
        return self.without_kernel * 20 > self.kernel_launches > 0

    @property
    def why_unknown(self) -> str | None:
        """Why utilisation is unknown, a sentence; None if it is known."""
        launches = counted(self.kernel_launches, "launch", "launches")
        blank = f"{self.without_kernel:,} of {launches} have no kernel in the trace"
        if self.other is not None and not self.gpu_events:
            return self.other.sentence
        if self.is_missing:
            return (
                f"{blank}: the GPU's activity was not recorded (another profiler on the GPU, or "
                "no permission to trace it), so the trace does not say what the GPU did."
            )
        if not self.gpu_events:
            return "The trace holds no GPU work, so the trace does not say what the GPU did."
        if self.offset is not None:
            text = self.offset.sentence
            return f"{text[0].upper()}{text[1:]}, so the times of the GPU's work are unknown."
        if self.is_incomplete:
            return f"{blank}: activity was dropped, so the trace does not say what the GPU did."
        return None
