# SPDX-License-Identifier: Apache-2.0
"""What an analysis returns: frozen, complete, without a trace behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron.torch_trace.analysis.communication.clocks import Clock
from megatron.torch_trace.analysis.communication.stragglers import Straggler
from megatron.torch_trace.analysis.communication.totals import CommunicationRow, DimensionTotal
from megatron.torch_trace.analysis.communication.worst_call import WorstCall
from megatron.torch_trace.analysis.gpu_work.kernels import Casts, FamilyRow, KernelRow, OperatorRow
from megatron.torch_trace.analysis.gpu_work.mfu import Mfu
from megatron.torch_trace.analysis.host.idle import Host
from megatron.torch_trace.analysis.modules.coverage import ModuleAccount
from megatron.torch_trace.analysis.modules.rows import ModuleRow
from megatron.torch_trace.analysis.results.cpu_time import CpuTime
from megatron.torch_trace.analysis.results.path_part import PathPart
from megatron.torch_trace.analysis.results.stage_work import StageWork
from megatron.torch_trace.analysis.results.summary import Summary
from megatron.torch_trace.analysis.schedule.microbatches import BubbleRow, MicrobatchRow
from megatron.torch_trace.analysis.schedule.passes import PassRow
from megatron.torch_trace.analysis.schedule.phases import PhaseRow
from megatron.torch_trace.analysis.schedule.pipeline import PipelineStep
from megatron.torch_trace.analysis.timeline.breakdown import Breakdown
from megatron.torch_trace.analysis.timeline.launches import LaunchStatistics
from megatron.torch_trace.analysis.timeline.moment import Example
from megatron.torch_trace.analysis.timeline.time_slices import Course
from megatron.torch_trace.format.file_names import PARTIAL, TraceName
from megatron.torch_trace.format.undisturbed_iterations import UndisturbedIterations
from megatron.torch_trace.wording import UNKNOWN

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, slots=True)
class StepResult:
    """One step: [start_ns, end_ns) in ns since the trace's base time; None: utilisation unknown."""

    step: int
    start_ns: int
    end_ns: int
    breakdown: Breakdown | None


@dataclass(frozen=True, slots=True)
class RankResult:
    """All of one rank. Times are ns; tables are complete, whatever a report shows of them.

    Args:
        rank: global rank; a trace that tells none is given the lowest free number.
        other_maker: who else than torch.profiler wrote the trace, and the way out; None if nobody.
        other_device: its rows and what can be said of them, if it is no CUDA or ROCm GPU.
        is_rocm: calls of HIP are in the trace.
        is_rank_known: the trace or its name tells it; else the number only tells traces apart.
        is_single: there is no other trace to tell it apart from.
        file: path of the trace.
        coordinates: index in the parallel dimensions, as far as known.
        world_size, device, host: None if not recorded.
        other_devices: GPUs that this process used besides the analysed one.
        window_ns: length of the window.
        communication_ns: union of all communication in it, exposed or not.
        overlapped_communication_ns: of that, beside compute.
        breakdown: None when launches lack kernels (`unknown` says so): utilisation is unknown.
        unknown: why utilisation is unknown, a sentence; None if it is known.
        steps, dimensions: time by the clock; communication by dimension.
        communication: by dimension, group, collective.
        kernels, families, operators, shapes, modules: by time; modules by path.
        casts: kernels that only convert tensors.
        launches, host: the CPU side.
        pipeline: by step; empty without pipeline communication.
        repairs: what the reader mended or lost: kind -> count, offsets, meaning.
        odd_times: events dropped for impossible times, and ones without an end.
        duplicates: GPU rows that are in the trace again, and are counted once.
        damage: the reader's account in one sentence; None if the file is whole.
        model_flops, argv: what capture wrote; None and () if it did not.
        loop: the training loop that was recorded, such as `megatron`; None if it is unknown.
        settings: what the run has set, in words of Megatron's command line: argv where that is
            Megatron's, else what capture found in the loop's own configurations.
        compile: what torch.compile did again during the window, and fused kernels that refused
            their inputs: name -> how often, as capture counted; empty if it did not.
        collector: `collections` of Python's garbage, `time_ns`, `longest_ns`, as capture measured.
        python_functions: Python frames in the trace, which are counted and not kept.
        wait_ns: sum of the rank's waits in matched collectives; None for a single rank.
        module_classes: modules by class, by time.
        module_account: GPU work in modules and outside; None if the trace tells of no modules.
        phases, microbatches: by time; in order. Empty without spans of phases.
        bubble, passes: the pipeline's bubble by place in 1F1B; its passes in a trace without spans.
        base_ns: what the trace's times count from, ns since the epoch where the trace tells it.
        course: the breakdown in slices of time; None if utilisation is unknown.
        cpu: time of the CPU, of a recording with neither GPU work nor launches; else None.
        undisturbed: iterations without the profiler next to the window, as far as capture told.
        tokens: of one iteration over all GPUs, as capture wrote; else None.
    """

    rank: int
    file: str
    coordinates: Mapping[str, int]
    world_size: int | None
    device: str | None
    host_name: str | None
    other_devices: tuple[int, ...]
    window_ns: int
    communication_ns: int | None
    overlapped_communication_ns: int | None
    breakdown: Breakdown | None
    unknown: str | None
    steps: tuple[StepResult, ...]
    dimensions: tuple[DimensionTotal, ...]
    communication: tuple[CommunicationRow, ...]
    kernels: tuple[KernelRow, ...]
    families: tuple[FamilyRow, ...]
    operators: tuple[OperatorRow, ...]
    shapes: tuple[OperatorRow, ...]
    modules: tuple[ModuleRow, ...]
    casts: Casts
    launches: LaunchStatistics
    host: Host
    pipeline: tuple[PipelineStep, ...]
    repairs: Mapping[str, Any] = field(default_factory=dict)
    odd_times: int = 0
    duplicates: int = 0
    damage: str | None = None
    model_flops: float | None = None
    argv: tuple[str, ...] = ()
    loop: str | None = None
    settings: tuple[str, ...] = ()
    compile: Mapping[str, int] = field(default_factory=dict)
    collector: Mapping[str, int] = field(default_factory=dict)
    python_functions: int = 0
    wait_ns: int | None = None
    module_classes: tuple[ModuleRow, ...] = ()
    module_account: ModuleAccount | None = None
    phases: tuple[PhaseRow, ...] = ()
    microbatches: tuple[MicrobatchRow, ...] = ()
    bubble: tuple[BubbleRow, ...] = ()
    passes: tuple[PassRow, ...] = ()
    base_ns: int = 0
    course: Course | None = None
    is_rank_known: bool = True
    is_single: bool = False
    other_maker: str | None = None
    cpu: CpuTime | None = None
    other_device: str | None = None
    is_rocm: bool = False
    undisturbed: UndisturbedIterations = field(default_factory=UndisturbedIterations)
    tokens: int | None = None

    @property
    def number(self) -> str:
        """For tables: `3`; `unknown` of a single trace that tells no rank."""
        return UNKNOWN if self.is_single and not self.is_rank_known else str(self.rank)

    @property
    def name(self) -> str:
        """For sentences: `rank 3`; `this rank` of a single trace that tells no rank."""
        return "this rank" if self.is_single and not self.is_rank_known else f"rank {self.rank}"

    @property
    def undisturbed_iteration_ns(self) -> int | None:
        """An iteration without the profiler, ns: the median; None if that is unknown.

        Source: docs/computed.md, "Undisturbed iteration".
        """
        return self.undisturbed.median_ns

    @property
    def recorded_iteration_ns(self) -> float | None:
        """An iteration of the window, ns: the mean; None without steps, or if the last was cut."""
        name = TraceName.parse(Path(self.file).name) if PARTIAL in self.file else None
        if not self.steps or (name is not None and name.partial):
            return None
        return sum(step.end_ns - step.start_ns for step in self.steps) / len(self.steps)

    @property
    def slowdown(self) -> float | None:
        """Recorded / undisturbed iteration, a ratio; None if one of them is unknown."""
        recorded, undisturbed = self.recorded_iteration_ns, self.undisturbed_iteration_ns
        return None if recorded is None or undisturbed is None else recorded / undisturbed

    @property
    def slowed_ns(self) -> int:
        """By how many ns the window is longer than its iterations without the profiler, or 0."""
        undisturbed = self.undisturbed_iteration_ns
        if self.slowdown is None or undisturbed is None:
            return 0
        return max(0, self.window_ns - len(self.steps) * undisturbed)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is worth doing something about.

    Args:
        code: stable name, for scripts: the rule's slug, or what begins with it.
        severity: `high`, `medium`, `low` or `info`.
        title: the fact in one sentence, with its number.
        evidence: the numbers behind it.
        advice: what to try, the action first, then a flag of Megatron's where there is one.
        share: part of the iteration that it concerns, for ordering; 0 if that is no time.
        example: where it can be seen best; None if it is nowhere in particular.
        gain_ns: by how much shorter the iteration would be without its cause, by a graph that
            replays the recorded iteration within 2 %; None where none does, or was asked.
        gain_error_ns: of the gain.
        change: what `torch-trace whatif` is asked for that; None like the gain.
        undisturbed_gain_ns: the gain without the profiler; None where that cannot be told.
        undisturbed_gain_error_ns: of that gain; None like it.
        cause: the finding that this one only follows from, or is in part; None if there is none.
    """

    code: str
    severity: str
    title: str
    evidence: Mapping[str, Any]
    advice: str
    share: float = 0.0
    example: Example | None = field(default=None, compare=False)
    gain_ns: int | None = field(default=None, compare=False)
    gain_error_ns: int | None = field(default=None, compare=False)
    change: str | None = field(default=None, compare=False)
    undisturbed_gain_ns: int | None = field(default=None, compare=False)
    undisturbed_gain_error_ns: int | None = field(default=None, compare=False)
    cause: str | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """Its code; of findings about single ranks with the rank: `straggler of rank 2`."""
        rank = self.evidence.get("rank")
        return self.code if rank is None else f"{self.code} of rank {rank}"

    @property
    def sure_gain_ns(self) -> int:
        """The gain, if it is one and larger than its error; else 0."""
        gain, error = self.gain_ns or 0, self.gain_error_ns or 0
        return gain if gain > error else 0


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A file that was not analysed, and why."""

    file: str
    reason: str


@dataclass(frozen=True, slots=True)
class Analysis:
    """The whole answer.

    Args:
        ranks: ascending.
        summary: means over them.
        missing_ranks: ranks of the job without a trace here; None if the world size is unknown.
        clocks: what aligns the ranks in time.
        stragglers: by imposed wait, the worst first; empty for a single rank.
        matched_calls: collectives found on at least two ranks.
        mfu: of the whole job.
        findings: most severe first.
        skipped_files: in the order given.
        stages: modules over the ranks of each pipeline stage; empty if no trace tells of modules.
        worst_call: the call of a collective in which ranks waited longest in sum, with arrivals.
        critical_path: of the recorded steps, in order; empty where no graph of kernels was made.
    """

    ranks: tuple[RankResult, ...]
    summary: Summary
    missing_ranks: tuple[int, ...] | None
    clocks: tuple[Clock, ...]
    stragglers: tuple[Straggler, ...]
    matched_calls: int
    mfu: Mfu
    findings: tuple[Finding, ...]
    skipped_files: tuple[SkippedFile, ...]
    stages: tuple[StageWork, ...] = ()
    critical_path: tuple[PathPart, ...] = ()
    worst_call: WorstCall | None = None

    @property
    def is_of_the_cpu(self) -> bool:
        """Whether no recording has a GPU in it, so that the CPU's time is the answer."""
        return all(rank.cpu is not None for rank in self.ranks)

    def to_polars(self) -> dict[str, pl.DataFrame]:
        """Every table over all ranks as a polars frame.

        Returns:
            `breakdown`, `steps`, `communication`, `kernels`, `families`, `operators`, `shapes`,
            `modules`, `module_classes`, `module_account`, `phases`, `microbatches`, `bubble`,
            `syncs`, `data_loading`, `loop_paths`, `pipeline`, `stragglers`, `clocks`, `findings`;
            each with a column `rank` where that makes sense. `stages`, and with a column `stage`
            `stage_layers` and `stage_classes`, are modules over ranks. Of recordings without a
            GPU also `cpu_operators` and `cpu_modules`. An empty table has no columns.
        """
        from megatron.torch_trace.analysis.results.frames import frames

        return frames(self)
