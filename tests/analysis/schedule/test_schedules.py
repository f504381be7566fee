# SPDX-License-Identifier: Apache-2.0
"""The bubble of schedules that are simulated pass by pass, with and without virtual stages.

A stage runs its passes in Megatron's order, each as soon as it is free and what the pass needs has
arrived; until then it receives. So its bubble is known without the analysis.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_builder import BACKWARD, GEMM, LOOP, SENDRECV, TraceBuilder, collective_args

from megatron.torch_trace.analysis.communication.collectives import attribute
from megatron.torch_trace.analysis.schedule.pipeline import PipelineStep, pipeline_steps

BEGIN = 100
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


class Pass(NamedTuple):
    """Forward or backward of one micro-batch through one virtual stage."""

    forward: bool
    number: int
    chunk: int


class Job(NamedTuple):
    """Stages, micro-batches, virtual stages of each rank; ns that a pass of a chunk takes."""

    stages: int
    microbatches: int
    chunks: int
    forward_ns: int
    backward_ns: int


class Run(NamedTuple):
    """A pass as it was run: the stage was free, then it began."""

    what: Pass
    free: int
    begin: int
    end: int


def order(job: Job, stage: int) -> list[Pass]:
    """Megatron's order: warm-up forwards, one forward and one backward in turn, the rest."""
    p, v = job.stages, job.chunks
    total = job.microbatches * v
    numbered = [(group * p + k % p, k // p % v) for k in range(total) for group in [k // (p * v)]]
    forwards = [Pass(True, number, chunk) for number, chunk in numbered]
    backwards = [Pass(False, number, v - 1 - chunk) for number, chunk in numbered]
    left = p - stage - 1
    warmup = min(total, left if v == 1 else 2 * left + (v - 1) * p)
    steady = [one for pair in zip(forwards[warmup:], backwards, strict=False) for one in pair]
    return forwards[:warmup] + steady + backwards[total - warmup :]


def needs(job: Job, stage: int, one: Pass) -> tuple[int, Pass] | None:
    """(stage, pass) that a pass waits for; None for the first forward of a micro-batch."""
    last = job.stages - 1
    if one.forward:
        if stage:
            return stage - 1, one
        return (last, one._replace(chunk=one.chunk - 1)) if one.chunk else None
    if stage < last:
        return stage + 1, one
    if one.chunk < job.chunks - 1:
        return 0, one._replace(chunk=one.chunk + 1)
    return stage, one._replace(forward=True)


def simulate(job: Job) -> list[list[Run]]:
    """What each stage runs, when."""
    waiting = [order(job, stage) for stage in range(job.stages)]
    done: dict[tuple[int, Pass], int] = {}
    runs: list[list[Run]] = [[] for _ in waiting]
    while any(waiting):
        for stage, passes in enumerate(waiting):
            while passes:
                needed = needs(job, stage, passes[0])
                if needed is not None and needed not in done:
                    break
                one = passes.pop(0)
                free = runs[stage][-1].end if runs[stage] else BEGIN
                begin = max(free, done[needed] if needed else free)
                end = begin + (job.forward_ns if one.forward else job.backward_ns)
                done[stage, one] = end
                runs[stage].append(Run(one, free, begin, end))
    return runs


def trace(job: Job, stage: int, runs: list[Run], *, told: str) -> TraceBuilder:
    """The trace of one stage: receives, compute, notes of sends; `told` is what tells of passes."""
    members = list(range(job.stages))
    groups = [{"pg_name": "pp", "pg_desc": "PIPELINE_MODEL_PARALLEL_GROUP", "ranks": members}]
    end = max(run.end for run in runs)
    flag = f"--num-virtual-stages-per-pipeline-rank={job.chunks}"
    own = {"argv": ["pretrain_gpt.py", flag]} if told == "argv" else None
    built = TraceBuilder(stage, job.stages, groups=groups, own=own).step(1, 0, end + 50)
    built.gpu("ncclDevKernel_AllReduce", end + 10, end + 30, launch=end + 5)
    for run in runs:
        needed = needs(job, stage, run.what)
        if needed is not None and needed[0] != stage and run.begin > run.free:
            args = collective_args("recv", "pp")
            # A ns of the wait is before the receive begins: nothing runs then.
            late = run.free + (run.begin - run.free > 1 and run.free > BEGIN)
            built.gpu(SENDRECV, late, run.begin, launch=run.free - 1, stream=9, args=args)
        thread = LOOP if run.what.forward else BACKWARD
        built.gpu(GEMM, run.begin, run.end, launch=run.free - 1, tid=thread)
        if told == "spans":
            chunk = f" chunk {run.what.chunk}" if job.chunks > 1 else ""
            way = "forward" if run.what.forward else "backward"
            built.annotation(f"{way} micro-batch {run.what.number}{chunk}", run.free - 1, run.free)
        if (
            told == "loader"
            and run.what.forward
            and not run.what.chunk
            and stage in (0, members[-1])
        ):
            built.annotation(LOADER, run.free - 2, run.free - 1)
        if any(needs(job, to, one) == (stage, run.what) for to, one in others(job, stage)):
            at = run.end
            built.op("record_param_comms", at, at + 1, args=collective_args("send", "pp"))
    return built


def others(job: Job, stage: int) -> Iterator[tuple[int, Pass]]:
    for to in {(stage - 1) % job.stages, (stage + 1) % job.stages} - {stage}:
        for one in order(job, to):
            yield to, one


def measured(job: Job, stage: int, runs: list[Run], *, told: str = "spans") -> PipelineStep:
    with tempfile.TemporaryDirectory() as folder:
        timeline = trace(job, stage, runs, told=told).timeline(Path(folder))
        found = pipeline_steps(timeline, attribute(timeline), stage)
    assert len(found) == 1
    return found[0]


jobs = st.builds(
    Job,
    stages=st.integers(2, 4),
    microbatches=st.integers(1, 3),
    chunks=st.integers(1, 3),
    forward_ns=st.integers(1, 9),
    backward_ns=st.integers(1, 9),
).map(
    # Virtual stages take micro-batches in groups of as many as there are stages.
    lambda job: job._replace(microbatches=job.microbatches * (job.stages if job.chunks > 1 else 1))
)


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(jobs)
def test_every_nanosecond_of_a_stage_without_compute_is_its_bubble(job: Job) -> None:
    for stage, runs in enumerate(simulate(job)):
        found = measured(job, stage, runs)
        computing = {time for run in runs for time in range(run.begin, run.end)}
        first = BEGIN if stage else runs[0].begin
        bubble = [time for time in range(first, runs[-1].end) if time not in computing]
        assert (found.start_ns, found.end_ns) == (first, runs[-1].end)
        assert found.bubble_ns == len(bubble)
        assert found.compute_ns == len(computing)
        assert (found.stage, found.stages) == (stage, job.stages)
        assert (found.microbatches, found.chunks) == (job.microbatches, job.chunks)


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(jobs)
def test_the_first_stage_of_an_even_pipeline_has_the_ideal_bubble(job: Job) -> None:
    if job.microbatches < job.stages:
        return
    found = measured(job, 0, simulate(job)[0])
    assert found.bubble_ns == (job.stages - 1) * (job.forward_ns + job.backward_ns)
    assert found.ideal_share is not None
    assert found.bubble_share == pytest.approx(found.ideal_share)


@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize(("told", "stages"), [("loader", 2), ("argv", 2), ("argv", 3)])
def test_sends_and_the_loader_or_the_command_line_tell_as_much_as_spans(
    chunks: int, told: str, stages: int
) -> None:
    job = Job(stages, microbatches=6, chunks=chunks, forward_ns=3, backward_ns=5)
    for stage, runs in enumerate(simulate(job)):
        found = measured(job, stage, runs, told=told)
        assert (found.microbatches, found.chunks) == (6, chunks)
