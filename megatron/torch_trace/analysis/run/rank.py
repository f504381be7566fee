# SPDX-License-Identifier: Apache-2.0
"""One rank, from its file to its result: what a worker process computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from megatron.torch_trace.analysis.communication.collectives import attribute
from megatron.torch_trace.analysis.communication.rank_calls import RankCalls, rank_calls
from megatron.torch_trace.analysis.communication.totals import communication_rows, dimension_totals
from megatron.torch_trace.analysis.gpu_work.kernels import (
    casts,
    family_rows,
    kernel_rows,
    operator_rows,
)
from megatron.torch_trace.analysis.gpu_work.mfu import dense_peak_tflops
from megatron.torch_trace.analysis.host.idle import look_at_host
from megatron.torch_trace.analysis.modules.rows import look_at_modules
from megatron.torch_trace.analysis.results.analysis import RankResult, StepResult
from megatron.torch_trace.analysis.results.cpu_time import cpu_time
from megatron.torch_trace.analysis.schedule.microbatches import (
    BubbleRow,
    bubble_rows,
    microbatch_rows,
)
from megatron.torch_trace.analysis.schedule.passes import pass_rows
from megatron.torch_trace.analysis.schedule.phases import phase_rows
from megatron.torch_trace.analysis.schedule.pipeline import (
    PipelineStep,
    pipeline_steps,
    pipeline_waiting,
)
from megatron.torch_trace.analysis.timeline import command_line
from megatron.torch_trace.analysis.timeline.activity import Activity, read_activity
from megatron.torch_trace.analysis.timeline.breakdown import break_down
from megatron.torch_trace.analysis.timeline.launches import LaunchStatistics, launch_statistics
from megatron.torch_trace.analysis.timeline.steps import MergedTraceError, Window
from megatron.torch_trace.analysis.timeline.time_slices import course_of
from megatron.torch_trace.analysis.timeline.timeline import Timeline, timeline_of
from megatron.torch_trace.errors import TorchTraceError
from megatron.torch_trace.files.sources import rank_of
from megatron.torch_trace.format.undisturbed_iterations import (
    METADATA_NAME,
    UndisturbedIterations,
)
from megatron.torch_trace.gpu_record.judgement import GpuRecord
from megatron.torch_trace.gpu_record.other_devices import OtherDevice
from megatron.torch_trace.wording import path_text

_TOO_MANY = 1e40
"""Tokens or FLOPs, which no iteration has."""


class EmptyTraceError(TorchTraceError):
    """A whole file in which there is nothing to analyse."""


class StepError(TorchTraceError):
    """`--step` names a step that the trace does not hold."""

    exit_status = 2


@dataclass(frozen=True, slots=True)
class RankOutcome:
    """A rank's result and what the comparison with other ranks needs.

    Args:
        rank: as the file or its name tells it; None if neither does.
        result: its own analysis.
        calls: its collectives.
        run: name of the run's folder, by the file's own word.
    """

    rank: int | None
    result: RankResult
    calls: RankCalls
    run: str | None = None


def analyse_rank(
    path: Path | str,
    *,
    workers: int = 1,
    strict: bool = False,
    step: int | None = None,
    on_timeline: Callable[[Timeline], None] | None = None,
) -> RankOutcome:
    """Analyse the trace of one rank.

    Args:
        path: the trace.
        workers: processes to decode with.
        strict: raise at the first fault.
        step: only this step, by its number in the trace.
        on_timeline: gets what was read of the trace, which is large, before it is analysed, for
            more than the analysis.

    Raises:
        NotATraceError, StrictError: see `read_activity`.
        MergedTraceError: the file holds several ranks.
        EmptyTraceError: it holds neither steps nor GPU work.
        StepError: it does not hold `step`.
    """
    activity = read_activity(path, workers=workers, strict=strict)
    if activity.metadata.merged is not None:
        raise MergedTraceError(activity.path)
    timeline = timeline_of(activity, workers=workers)
    if timeline is None or timeline.window.length <= 0:
        maker = activity.metadata.maker
        if maker is not None:
            raise EmptyTraceError(f"{path}: {maker.sentence}")
        reason = _other_device(activity) or "holds neither ProfilerStep nor GPU work."
        raise EmptyTraceError(f"{path}: {reason}")
    if step is not None:
        timeline.window = _only(timeline.window, step, path)
    if on_timeline:
        on_timeline(timeline)
    return analyse_timeline(timeline, rank_of(activity.metadata, activity.path))


def _only(window: Window, number: int, path: Path | str) -> Window:
    for step in window.steps:
        if step.number == number:
            return replace(window, start=step.start, end=step.end, steps=(step,))
    held = ", ".join(str(step.number) for step in window.steps) or "none"
    raise StepError(f"--step {number}: {path} has no such step; the trace has {held}.")


def analyse_timeline(timeline: Timeline, rank: int | None) -> RankOutcome:
    """The analysis of what was read of a trace.

    Args:
        timeline: one rank, whose window is longer than nothing.
        rank: its number; None if it is unknown.
    """
    activity, window = timeline.activity, timeline.window
    whole, by_step = break_down(timeline.sets, window)
    launches = launch_statistics(
        activity,
        timeline.launches,
        window,
        timeline.devices.served_elsewhere,
        timeline.clock_offset,
    )
    unknown = _why_unknown(timeline, launches)
    calls = attribute(timeline)
    communication = timeline.sets.communication.total
    metadata = activity.metadata
    flops = _amount(metadata.own.get("model_flops_per_iteration"))
    shapes = operator_rows(timeline, by_shape=True) if activity.shapes else ()
    device = _device(activity, timeline.devices.analysed)
    modules = look_at_modules(timeline, dense_peak_tflops(device))
    pipeline: tuple[PipelineStep, ...] = ()
    if timeline.clock_offset is None:
        pipeline = pipeline_steps(timeline, calls, -1 if rank is None else rank)
    bubble: tuple[BubbleRow, ...] = ()
    if pipeline:
        bounds = [(one.start_ns, one.end_ns) for one in pipeline]
        bubble = bubble_rows(timeline, pipeline_waiting(timeline, calls), bounds)
    result = RankResult(
        rank=-1 if rank is None else rank,
        file=path_text(activity.path),
        coordinates=metadata.coordinates,
        world_size=metadata.world_size,
        device=device,
        host_name=host if isinstance(host := metadata.own.get("host"), str) else None,
        other_devices=timeline.devices.others,
        window_ns=window.length,
        communication_ns=None if unknown else communication,
        overlapped_communication_ns=(
            None if unknown else communication - whole.exposed_communication
        ),
        breakdown=None if unknown else whole,
        unknown=unknown,
        other_device=_other_device(activity),
        is_rocm=bool(activity.named(activity.calls, _is_hip).any()),
        other_maker=activity.metadata.maker.sentence if activity.metadata.maker else None,
        steps=tuple(
            StepResult(step.number, step.start, step.end, None if unknown else parts)
            for step, parts in zip(window.steps, by_step, strict=True)
        ),
        dimensions=dimension_totals(timeline, calls),
        communication=communication_rows(timeline, calls),
        kernels=kernel_rows(timeline),
        families=family_rows(timeline),
        operators=operator_rows(timeline),
        shapes=shapes,
        modules=modules.rows,
        module_classes=modules.classes,
        module_account=modules.account,
        phases=phase_rows(timeline),
        microbatches=microbatch_rows(timeline),
        bubble=bubble,
        passes=pass_rows(timeline, calls, pipeline),
        casts=casts(timeline),
        launches=launches,
        host=look_at_host(timeline),
        pipeline=pipeline,
        repairs=activity.damage.as_json(),
        odd_times=activity.odd_times + activity.unfinished + activity.without_start,
        duplicates=activity.duplicates,
        damage=activity.damage.sentence() or None,
        model_flops=None if flops is None else float(flops),
        argv=command_line.words_in(metadata.own, "argv"),
        loop=command_line.loop_in(metadata.own),
        settings=command_line.settings(metadata.own),
        compile=_counts(metadata.own.get("compile")),
        collector=_pauses(metadata.own.get("garbage_collection")),
        python_functions=activity.python_functions,
        base_ns=activity.base_ns,
        course=None if unknown else course_of(timeline.sets, window),
        cpu=cpu_time(timeline) if _is_of_the_cpu(activity) else None,
        undisturbed=_undisturbed(metadata.own.get(METADATA_NAME)),
        tokens=_count(metadata.own.get("tokens_per_iteration")),
    )
    run = metadata.own.get("run")
    return RankOutcome(
        rank, result, rank_calls(timeline, calls), run if isinstance(run, str) else None
    )


def _undisturbed(written: object) -> UndisturbedIterations:
    return UndisturbedIterations.of(written if isinstance(written, list) else ())


def _count(written: object) -> int | None:
    amount = _amount(written)
    return amount if isinstance(amount, int) else None


def _amount(written: object) -> int | float | None:
    if isinstance(written, bool) or not isinstance(written, (int, float)):
        return None
    return written if 0 < written < _TOO_MANY else None


def _counts(written: object) -> dict[str, int]:
    if not isinstance(written, dict):
        return {}
    return {str(name): count for name, count in written.items() if isinstance(count, int)}


def _pauses(written: object) -> dict[str, int]:
    """What capture writes of the collector, whole; empty where something is missing or wrong."""
    found = {name: count for name, count in _counts(written).items() if count >= 0}
    return found if found.keys() >= {"collections", "time_ns", "longest_ns"} else {}


def _why_unknown(timeline: Timeline, launches: LaunchStatistics) -> str | None:
    maker = timeline.activity.metadata.maker
    if maker is not None:
        return maker.sentence
    record = GpuRecord(
        gpu_events=len(timeline.activity.gpu),
        kernel_launches=launches.kernel_launches,
        without_kernel=launches.without_kernel,
        offset=timeline.clock_offset,
        other=OtherDevice.among(timeline.activity.others),
    )
    return record.why_unknown


def _is_of_the_cpu(activity: Activity) -> bool:
    if _other_device(activity):
        return True
    nothing = not len(activity.gpu) and not len(activity.calls)
    return nothing and activity.metadata.maker is None


def _other_device(activity: Activity) -> str | None:
    other = OtherDevice.among(activity.others)
    return None if other is None or len(activity.gpu) else other.sentence


def _is_hip(name: str) -> bool:
    return name.startswith("hip")


def _device(activity: Activity, number: int | None) -> str | None:
    devices = activity.metadata.devices
    for device in devices:
        if device.get("id") == number:
            return str(device.get("name"))
    name = activity.metadata.own.get("device")
    if isinstance(name, str):
        return name
    return str(devices[0].get("name")) if devices else None
