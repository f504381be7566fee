# SPDX-License-Identifier: Apache-2.0
"""When each pass of a pipeline is done, on two tracks: its CPU and its GPU.

    CPU   [ F1 ][ F2 ][ B1 ]          The CPU goes on without the GPU, unless it waits at a send or
    GPU     [ F1 ]    [ F2 ][ B1 ]    receive. The GPU takes a pass when it is launched, when the
               ^ its input came       pass before is done, and when its input has come.

With C and G for the end of a pass on CPU and GPU, c and g for its times, A for when its input came:

    C = max(C of the pass before, and where the CPU waits: A, G of the pass before) + c
    G = max(G of the pass before + g, A + g, C + max(0, g - c))
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.analysis.replay.spans.orders import Pass, Plan, Shape, plan_of
from megatron.torch_trace.analysis.replay.spans.passes import BACKWARD, FORWARD, Passes, Times


@dataclass(frozen=True, slots=True)
class Simulation:
    """Times of one simulated iteration, ns since its start.

    Args:
        passes: what was simulated.
        plan: in which order.
        cpu, gpu: of each pass of the plan by lane, when it is done.
        waits: by pass, whether the CPU waits before it for the GPU.
        steps: by step, the iteration.
    """

    passes: Passes
    plan: Plan
    cpu: Times
    gpu: Times
    waits: tuple[bool, ...]
    steps: Times

    @property
    def iteration_ns(self) -> int:
        """The mean over steps."""
        return round(float(self.steps.mean()))

    def ends(self) -> Times:
        """By lane, when its last pass is done."""
        return np.asarray(self.gpu.max(axis=0), dtype=np.float64)


def simulate(passes: Passes) -> Simulation:
    """One iteration, all lanes at once."""
    plan = plan_of(passes.shape)
    waits = _waits(passes, plan)
    lanes = len(passes.step_of)
    cpu = np.zeros((len(plan.passes), lanes))
    gpu = np.zeros_like(cpu)
    for number, one in enumerate(plan.passes):
        c, g = _times(passes, one)
        before, needed = plan.previous[number], plan.needed[number]
        if before < 0:
            start = passes.head[:, one.stage]
            done = start + g
        else:
            start = cpu[before]
            done = gpu[before] + g
            if waits[number]:
                start = np.maximum(start, gpu[before])
        if needed >= 0:
            came = gpu[needed] + passes.transfer
            done = np.maximum(done, came + g)
            if passes.is_blocking:
                start = np.maximum(start, came)
        cpu[number] = start + c
        gpu[number] = np.maximum(done, cpu[number] + np.maximum(0.0, g - c))
    ends = gpu.max(axis=0)
    steps = np.full(len(passes.recorded), 0.0)
    np.maximum.at(steps, passes.step_of, ends)
    return Simulation(passes, plan, cpu, gpu, waits, steps + passes.tail)


def pass_slack(simulation: Simulation) -> Times:
    """By pass of the plan and lane: by how much it may be later."""
    cpu, gpu = _latest(simulation)
    return np.asarray(np.minimum(cpu - simulation.cpu, gpu - simulation.gpu), dtype=np.float64)


def pass_times(simulation: Simulation) -> Times:
    """By pass of the plan and lane: how long its CPU or its GPU works, the longer one."""
    both = [np.maximum(*_times(simulation.passes, one)) for one in simulation.plan.passes]
    return np.stack(both)


def _latest(simulation: Simulation) -> tuple[Times, Times]:
    """When each pass has to be done on CPU and GPU at the latest."""
    passes, plan = simulation.passes, simulation.plan
    end = (simulation.steps - passes.tail)[passes.step_of]
    cpu = np.full_like(simulation.cpu, np.inf)
    gpu = np.broadcast_to(end, cpu.shape).copy()
    for number in range(len(plan.passes) - 1, -1, -1):
        one = plan.passes[number]
        c, g = _times(passes, one)
        np.minimum(cpu[number], gpu[number] - np.maximum(0.0, g - c), out=cpu[number])
        before, needed = plan.previous[number], plan.needed[number]
        launched = cpu[number] - c
        if before >= 0:
            np.minimum(cpu[before], launched, out=cpu[before])
            np.minimum(gpu[before], gpu[number] - g, out=gpu[before])
            if simulation.waits[number]:
                np.minimum(gpu[before], launched, out=gpu[before])
        if needed >= 0:
            latest = gpu[number] - g - passes.transfer
            if passes.is_blocking:
                latest = np.minimum(latest, launched - passes.transfer)
            np.minimum(gpu[needed], latest, out=gpu[needed])
    return cpu, gpu


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the path that the iteration could not avoid.

    Args:
        stage: where.
        kind: `cpu`, `gpu`, `transfer`, `start` or `end`.
        one: which pass; None at the start and the end.
        time: ns.
    """

    stage: int
    kind: str
    one: Pass | None
    time: float


def path_of(simulation: Simulation, lane: int) -> list[Piece]:
    """The path of one lane, from its start to its end: times add up to the lane's iteration."""
    passes, plan = simulation.passes, simulation.plan
    cpu, gpu = simulation.cpu[:, lane], simulation.gpu[:, lane]
    tail = float(passes.tail[passes.step_of[lane]])
    number = int(gpu.argmax())
    found = [Piece(plan.passes[number].stage, "end", None, tail)]
    on_gpu = True
    while True:
        one = plan.passes[number]
        before, needed = plan.previous[number], plan.needed[number]
        c, g = (float(values[lane]) for values in _times(passes, one))
        came = float(gpu[needed]) + passes.transfer if needed >= 0 else -np.inf
        done = float(gpu[before]) if before >= 0 else -np.inf
        if on_gpu:
            behind_cpu = float(cpu[number]) + max(0.0, g - c)
            if behind_cpu >= max(done + g, came + g):
                found.append(Piece(one.stage, "gpu", one, max(0.0, g - c)))
                on_gpu = False
                continue
            found.append(Piece(one.stage, "gpu", one, g))
        else:
            found.append(Piece(one.stage, "cpu", one, c))
            alone = float(cpu[before]) if before >= 0 else float(passes.head[lane, one.stage])
            done = done if simulation.waits[number] else -np.inf
            came = came if passes.is_blocking else -np.inf
            if alone >= max(done, came):
                if before < 0:
                    break
                number = before
                continue
        if came >= done:
            found.append(Piece(one.stage, "transfer", one, passes.transfer))
            number = needed
        else:
            number = before
        on_gpu = True
        if number < 0:
            break
    first = found[-1]
    found.append(Piece(first.stage, "start", None, float(passes.head[lane, first.stage])))
    return [piece for piece in reversed(found) if piece.time > 0]


def _times(passes: Passes, one: Pass) -> tuple[Times, Times]:
    direction = FORWARD if one.is_forward else BACKWARD
    at = (slice(None), one.stage, direction, one.chunk, one.microbatch)
    return passes.cpu[at], passes.gpu[at]


def _waits(passes: Passes, plan: Plan) -> tuple[bool, ...]:
    """Where a blocking send or receive lies between a pass and the one before on its stage."""
    if not passes.is_blocking:
        return (False,) * len(plan.passes)
    found = []
    for number, one in enumerate(plan.passes):
        before = plan.previous[number]
        found.append(before >= 0 and _between(passes.shape, plan.passes[before], one))
    return tuple(found)


def _between(shape: Shape, before: Pass, one: Pass) -> bool:
    """Whether something is sent after `before` or received before `one`."""
    last = shape.stages - 1
    to_next = before.stage < last if before.is_forward else before.stage > 0
    from_other = one.stage > 0 if one.is_forward else one.stage < last
    return to_next or from_other
