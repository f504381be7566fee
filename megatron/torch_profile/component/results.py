# SPDX-License-Identifier: Apache-2.0
"""What was found out about each case; renders nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from megatron.torch_profile.component.config import Config
from megatron.torch_profile.component.measure.ceilings import Ceilings
from megatron.torch_profile.component.measure.finding import Finding
from megatron.torch_profile.component.measure.samples import Ratio, Summary, ratio
from megatron.torch_profile.component.measure.work import Work
from megatron.torch_profile.component.variants import Case
from megatron.torch_profile.component.waterfall import Waterfall
from megatron.torch_trace.format.file_names import WindowName


@dataclass(frozen=True, slots=True)
class Measured:
    """What one rank measured of a case.

    Args:
        times: of each measured step, in ns, in their order.
        peak_bytes: most in use of the GPU's memory for this case; None without a GPU.
        queued_ns: the median of steps whose calls waited for the GPU already; None without one.
    """

    rank: int
    times: tuple[int, ...]
    peak_bytes: int | None = None
    queued_ns: float | None = None

    @property
    def summary(self) -> Summary:
        """In a few numbers."""
        return Summary.of(self.times)


@dataclass(frozen=True, slots=True)
class Result:
    """One case.

    Args:
        slowest: of the ranks, the one whose median is the longest: its times are the case's.
        ranks: what each rank measured, by rank.
        window: of its trace in the run folder; None without one.
        failure: why there is nothing else, a sentence; left_out: because this machine lacks
            something, and nothing is wrong with the component.
        ratio: to the baseline; None for the baseline itself.
    """

    case: Case
    ranks: tuple[Measured, ...] = ()
    work: Work | None = None
    ceilings: Ceilings | None = None
    window: WindowName | None = None
    waterfall: Waterfall | None = None
    findings: tuple[Finding, ...] = ()
    failure: str | None = None
    left_out: bool = False
    baseline: str | None = None
    ratio: Ratio | None = None

    @property
    def slowest(self) -> Measured | None:
        """The rank that the others wait for."""
        return max(self.ranks, key=lambda one: one.summary.median, default=None)

    @property
    def summary(self) -> Summary | None:
        """Of the slowest rank."""
        return self.slowest.summary if self.slowest else None

    @property
    def peak_bytes(self) -> int | None:
        """Of the rank with most in use."""
        return max(
            (one.peak_bytes for one in self.ranks if one.peak_bytes is not None), default=None
        )

    @property
    def roof_share(self) -> float | None:
        """The time at best divided by the median."""
        if self.ceilings is None or not (self.summary and self.summary.median):
            return None
        if self.work is None or not (self.work.bytes or self.work.flops):
            return None
        return self.ceilings.least_ns(self.work) / self.summary.median

    @property
    def kernels(self) -> int | None:
        """GPU work in a step; None without a GPU."""
        if self.waterfall is None or not self.waterfall.gpu:
            return None
        return len(self.waterfall.pieces)

    @property
    def queued_ns(self) -> float | None:
        """Of the slowest rank."""
        return self.slowest.queued_ns if self.slowest else None

    @property
    def gpu_ns(self) -> float | None:
        """How long the GPU works in a step; None without a GPU.

        The lower one of two: what runs in the recorded step, which gaps between kernels are not
        part of, and the step whose calls waited for the GPU.
        """
        busy = self.waterfall.busy_ns if self.waterfall and self.waterfall.gpu else None
        return min((one for one in (busy, self.queued_ns) if one is not None), default=None)


@dataclass(frozen=True, slots=True)
class Answer:
    """All cases of a config.

    Args:
        device: its name.
        clock: what measured the steps.
        again: the first case's time, measured once more at the end, divided by the first time: how
            far the device itself has moved meanwhile; None if there is only one case.
    """

    config: Config
    run_folder: Path
    device: str
    clock: str
    world_size: int
    results: tuple[Result, ...]
    again: Ratio | None = None

    def sure(self, one: Result) -> bool | None:
        """Whether a case differs from its baseline by more than noise and drift explain."""
        if one.ratio is None or one.ratio.sure is None:
            return None
        drift = self.again.value if self.again else 1.0
        return one.ratio.surely_beyond(1.0) and one.ratio.surely_beyond(drift)


def compared(results: list[Result], baselines: list[Result]) -> list[Result]:
    """The results with their ratios to the results beside them."""
    found = []
    for one, base in zip(results, baselines, strict=True):
        if one is base or not one.slowest or not base.slowest:
            found.append(one)
            continue
        found.append(
            replace(
                one,
                baseline=base.case.name,
                ratio=ratio(one.slowest.times, base.slowest.times),
            )
        )
    return found
