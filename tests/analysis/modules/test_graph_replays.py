# SPDX-License-Identifier: Apache-2.0
"""Kernels inside of CUDA graphs have the modules that an eager step of the same trace has."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from trace_builder import TraceBuilder

from megatron.torch_trace.analysis.modules.attribution import attribute_work
from megatron.torch_trace.analysis.modules.graph_replays import _Sequence, naming_launches
from megatron.torch_trace.analysis.modules.ranges import find_ranges
from megatron.torch_trace.analysis.modules.rows import look_at_modules
from megatron.torch_trace.analysis.timeline.activity import read_activity
from megatron.torch_trace.analysis.timeline.span_names import BACKWARD, FORWARD, PASSES
from megatron.torch_trace.analysis.timeline.timeline import timeline_of

RECORDED = Path(__file__).parents[2] / "data" / "graphs-from-eager" / "rank-0.pt.trace.json.zst"

LAYERS = 4
KERNELS = ("norm", "gemm_qkv", "softmax", "gemm_proj", "norm", "gemm_fc1", "gelu", "gemm_fc2")
MODULES = ("norm", "attention", "attention", "attention", "norm", "mlp", "mlp", "mlp")
STEP = 10_000


def eager(trace: TraceBuilder, step: int, layers: int = LAYERS) -> None:
    """A step whose kernels are launched one by one, each in its module."""
    now = step * STEP
    trace.step(step, now, now + STEP)
    for layer in range(layers):
        begin = now
        for kernel, module in zip(KERNELS, MODULES, strict=True):
            name = f"decoder.layers.{layer}.{module}: {module.title()}"
            trace.annotation(name, now, now + 10)
            trace.gpu(kernel, now + 12, now + 20, launch=now + 5)
            now += 20
        trace.annotation(f"decoder.layers.{layer}: Layer", begin, now)


def replaying(
    trace: TraceBuilder, step: int, blocks: Sequence[Sequence[str]], correlation: int = 1000
) -> None:
    """A step that launches each block of kernels by one call."""
    now = step * STEP
    trace.step(step, now, now + STEP)
    trace.annotation("decoder: Block", now, now + 5_000)
    for block in blocks:
        correlation += 1
        trace.call("cudaGraphLaunch", now, now + 5, args={"correlation": correlation})
        for kernel in block:
            trace.gpu(kernel, now + 10, now + 17, args={"correlation": correlation})
            now += 20


def own_times(trace: TraceBuilder, folder: Path) -> dict[str, int]:
    """Of each module, of steps 1 and later."""
    found = look_at_modules(trace.timeline(folder))
    return {row.module: row.self_ns for row in found.rows if row.self_ns}


def expected(steps: int) -> dict[str, int]:
    """8 ns for each kernel of the eager step, 7 for each one of a graph."""
    times: dict[str, int] = {}
    for layer in range(LAYERS):
        for module in MODULES:
            path = f"decoder.layers.{layer}.{module}"
            times[path] = times.get(path, 0) + 8 + 7 * steps
    return times


def test_a_graph_for_each_layer_has_the_modules_of_its_own_layer(tmp_path: Path) -> None:
    trace = TraceBuilder()
    eager(trace, 0)
    for step in (1, 2):
        replaying(trace, step, [KERNELS] * LAYERS, correlation=1000 * step)
    assert own_times(trace, tmp_path) == expected(steps=2)


def test_one_graph_for_the_whole_step_has_all_of_them(tmp_path: Path) -> None:
    trace = TraceBuilder()
    eager(trace, 0)
    replaying(trace, 1, [KERNELS * LAYERS])
    found = look_at_modules(trace.timeline(tmp_path))
    assert found.account is not None
    assert (found.account.replayed, found.account.replayed_found) == (32, 32)
    assert own_times(trace, tmp_path) == expected(steps=1)


def test_what_only_the_graph_has_stays_without_a_name_and_is_counted(tmp_path: Path) -> None:
    trace = TraceBuilder()
    eager(trace, 0)
    replaying(trace, 1, [("copy_input", *KERNELS[:3], "copy_rng", *KERNELS[3:])] * LAYERS)
    found = look_at_modules(trace.timeline(tmp_path))
    assert found.account is not None
    assert (found.account.replayed, found.account.replayed_found) == (40, 32)
    times = {row.module: row.self_ns for row in found.rows if row.self_ns}
    assert times == {**expected(steps=1), "decoder": 7 * 8}, "the block launched them"


def test_what_a_graph_leaves_out_does_not_shift_what_follows(tmp_path: Path) -> None:
    trace = TraceBuilder()
    eager(trace, 0)
    replaying(trace, 1, [[k for k in KERNELS if k != "gelu"]] * LAYERS)
    times = own_times(trace, tmp_path)
    mlp = f"decoder.layers.{LAYERS - 1}.mlp"
    assert times[mlp] == 3 * 8 + 2 * 7
    assert times["decoder.layers.0.norm"] == 2 * 8 + 2 * 7


def test_a_trace_of_replays_alone_names_nothing(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for step in (0, 1):
        replaying(trace, step, [KERNELS] * 2, correlation=1000 * (step + 1))
    found = look_at_modules(trace.timeline(tmp_path))
    assert found.account is not None
    assert (found.account.replayed, found.account.replayed_found) == (32, 0)


def test_a_trace_without_graphs_is_looked_at_as_before(tmp_path: Path) -> None:
    trace = TraceBuilder()
    eager(trace, 0)
    timeline = trace.timeline(tmp_path)
    naming = naming_launches(timeline)
    assert naming.time is timeline.launches.time
    assert not naming.replayed.any()


def test_a_step_that_also_compiles_is_not_the_one_that_names(tmp_path: Path) -> None:
    """The first step runs kernels twice to tune them; all others do not."""
    trace = TraceBuilder()
    eager(trace, 0)
    for at in range(40):
        trace.gpu(KERNELS[at % 8], STEP - 400 + 10 * at, STEP - 392 + 10 * at, launch=5_000 + at)
    eager(trace, 1)
    replaying(trace, 2, [KERNELS * LAYERS])
    timeline = trace.timeline(tmp_path)
    naming = naming_launches(timeline)
    assert naming.found.sum() == naming.replayed.sum() == len(KERNELS) * LAYERS
    (step,) = set(timeline.window.step_index(naming.time[naming.found]).tolist())
    assert timeline.window.steps[step].number == 1


def test_the_step_with_most_eager_kernels_is_the_one_that_names(tmp_path: Path) -> None:
    """A step in which the graphs are captured runs a part of it eagerly."""
    trace = TraceBuilder()
    eager(trace, 0, layers=1)
    eager(trace, 1)
    replaying(trace, 2, [KERNELS] * LAYERS)
    times = own_times(trace, tmp_path)
    assert times["decoder.layers.3.mlp"] == 3 * (8 + 7)
    assert times["decoder.layers.0.mlp"] == 3 * (8 + 8 + 7)


def test_every_kernel_of_a_recorded_run_on_a_gpu_finds_its_layer() -> None:
    """Two steps of 4 micro-batches and 4 layers: a graph for each forward and each backward."""
    timeline = timeline_of(read_activity(RECORDED))
    assert timeline is not None
    ranges = find_ranges(timeline)
    assert ranges is not None
    found = attribute_work(timeline, ranges)
    assert int(found.replayed.sum()) == int(found.found.sum()) == 2240
    layers = Counter(
        (ranges.paths[module].split(".")[2], PASSES[direction])
        for module, direction in zip(
            found.module[found.replayed].tolist(),
            found.direction[found.replayed].tolist(),
            strict=True,
        )
    )
    assert layers == {
        (str(layer), direction): kernels
        for layer in range(4)
        for direction, kernels in ((FORWARD, 8 * 18), (BACKWARD, 8 * 52))
    }


def test_graphs_of_each_micro_batch_begin_anew_and_a_backward_runs_its_layers_backwards(
    tmp_path: Path,
) -> None:
    """In the first micro-batch of the eager step kernels are tuned, so its order is another one."""
    trace = TraceBuilder()
    for step in (0, 1):
        trace.step(step, step * STEP, (step + 1) * STEP)
        for micro_batch in (0, 1):
            now = step * STEP + micro_batch * 1_000
            trace.annotation(f"forward micro-batch {micro_batch}", now, now + 900)
            for layer in (0, 1):
                names = ["gemm", "add"] if layer else ["norm", "gemm"]
                if step == 0 and micro_batch == 0:
                    names = ["gemm", *names, "add"]
                at = now + 100 * layer
                if step == 1:
                    correlation = 9_000 + at
                    args = {"correlation": correlation}
                    trace.call("cudaGraphLaunch", at, at + 2, args=args)
                trace.annotation(f"layers.{layer}: Layer", at, at + 90)
                for offset, name in enumerate(names):
                    begin = at + 10 * offset + 20
                    if step == 1:
                        trace.gpu(name, begin, begin + 7, args=args)
                    else:
                        trace.gpu(name, begin, begin + 8, launch=begin - 10)
    found = look_at_modules(trace.timeline(tmp_path))
    assert found.account is not None
    assert (found.account.replayed, found.account.replayed_found) == (8, 8)
    times = {row.module: row.self_ns for row in found.rows}
    assert times == {"layers.0": (4 + 2) * 8 + 4 * 7, "layers.1": (4 + 2) * 8 + 4 * 7}


@pytest.mark.parametrize("seed", range(5))
def test_nearly_all_of_a_step_with_odd_kernels_finds_its_very_own(seed: int) -> None:
    """A thousand kernels of 24 equal layers, of which a graph adds or loses one in fifty."""
    chance = random.Random(seed)
    layer = [chance.randrange(12) for _ in range(40)]
    names = np.array(layer * 24, dtype=np.int64)
    block, truth = [], []
    for place, name in enumerate(names.tolist()):
        if chance.random() < 0.01:
            block.append(99)
            truth.append(-1)
        if chance.random() < 0.01:
            continue
        block.append(name)
        truth.append(place)
    places, _ = _Sequence(names).align(np.array(block, dtype=np.int64), 0)
    right = sum(a == b for a, b in zip(places.tolist(), truth, strict=True))
    assert right / len(truth) > 0.98
    assert not any(a != -1 for a, b in zip(places.tolist(), truth, strict=True) if b == -1)


def test_a_recorded_graph_of_whole_iterations_has_the_modules_of_the_step_before() -> None:
    timeline = timeline_of(read_activity(RECORDED.parents[1] / "full-graph" / RECORDED.name))
    assert timeline is not None
    ranges = find_ranges(timeline)
    assert ranges is not None
    work = attribute_work(timeline, ranges)
    assert work.replayed.sum() == work.found.sum() == 2 * 1377
    named = work.module != -1
    kernels = [
        Counter(zip(work.module[rows].tolist(), work.direction[rows].tolist(), strict=True))
        for rows in (np.flatnonzero(named & (timeline.step_of == step)) for step in range(3))
    ]
    assert len(kernels[0]) == 105
    assert kernels[1] == kernels[2] == kernels[0]
