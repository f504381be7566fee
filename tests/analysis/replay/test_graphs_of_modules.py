# SPDX-License-Identifier: Apache-2.0
"""`--cuda-graphs`: of a module the kernels stay, and of its CPU time a replay."""

from __future__ import annotations

from pathlib import Path

import pytest
from recorded_traces import SAMPLES
from trace_builder import TraceBuilder

from megatron import torch_trace
from megatron.torch_trace.errors import UsageError

LAYER = "decoder.layers.{}: TransformerLayer"
LAUNCH = 100_000
"""ns that the CPU takes for a launch, its Python included."""


def trace(layers: int, kernels: int, kernel: int = 1_000, wait: bool = False) -> TraceBuilder:
    """A launch-bound step: 200 us of Python, layers, a kernel outside of them, a wait for all."""
    built = TraceBuilder()
    now = 200_000
    for layer in range(layers):
        begin = now
        for _ in range(kernels):
            built.gpu("gemm", now + 5_000, now + 5_000 + kernel, launch=now)
            now += LAUNCH
        if wait:
            built.call("cudaStreamSynchronize", now - 50_000, now - 40_000)
        built.annotation(LAYER.format(layer), begin, now)
    built.gpu("loss", now + 5_000, now + 5_000 + kernel, launch=now)
    end = now + 5_000 + kernel + 4_000
    built.call("cudaDeviceSynchronize", now + 10_000, end)
    return built.step(1, 0, end)


def test_of_a_layer_a_replay_of_five_launches_is_left(tmp_path: Path) -> None:
    path = trace(layers=2, kernels=20).write(tmp_path / "rank-0.json")
    answer = torch_trace.whatif(path, "--cuda-graphs layers")
    # Twice 20 launches become twice 5; the kernels of the last graph run after its replay.
    tail = 19 * (1_000 + 1_500)
    gain = answer.recorded_ns - answer.simulated_ns
    assert 30 * LAUNCH - tail <= gain <= 30 * LAUNCH
    assert answer.error_ns >= 7.5 * LAUNCH, "a replay may take half or twice as long"


def test_kernels_of_a_graph_still_take_their_time_one_after_another(tmp_path: Path) -> None:
    path = trace(layers=2, kernels=20, kernel=60_000).write(tmp_path / "rank-0.json")
    answer = torch_trace.whatif(path, "--cuda-graphs layers")
    replay = 5 * LAUNCH
    assert 39 * 61_500 < answer.simulated_ns - 200_000 - replay < 42 * 61_500


def test_modules_are_named_by_path_or_class(tmp_path: Path) -> None:
    path = trace(layers=2, kernels=20).write(tmp_path / "rank-0.json")
    both, one = (
        torch_trace.whatif(path, cuda_graphs=name).simulated_ns
        for name in ("TransformerLayer", "layers.1")
    )
    assert one - both == 15 * LAUNCH


def test_modules_within_a_module_are_in_its_graph(tmp_path: Path) -> None:
    built = trace(layers=1, kernels=20)
    built.annotation("decoder.layers.0.mlp: MLP", 300_000, 900_000)
    path = built.write(tmp_path / "rank-0.json")
    (tmp_path / "alone").mkdir()
    answer = torch_trace.whatif(path, "--cuda-graphs layers")
    alone = trace(layers=1, kernels=20).write(tmp_path / "alone" / "rank-0.json")
    assert answer.simulated_ns == torch_trace.whatif(alone, "--cuda-graphs layers").simulated_ns


def test_what_no_graph_can_hold_is_refused(tmp_path: Path) -> None:
    path = trace(layers=2, kernels=20, wait=True).write(tmp_path / "rank-0.json")
    with pytest.raises(UsageError) as refused:
        torch_trace.whatif(path, "--cuda-graphs layers")
    assert str(refused.value) == (
        "--cuda-graphs layers: the CPU waits for the GPU there (cudaStreamSynchronize), which no "
        "CUDA graph can hold; name modules without such waits, such as self_attention."
    )


@pytest.mark.parametrize(("module", "what"), [("layers", "layer"), ("mlp", "module called mlp")])
def test_without_spans_of_modules_it_is_refused(module: str, what: str) -> None:
    with pytest.raises(UsageError) as refused:
        torch_trace.whatif(SAMPLES / "tp2pp2", cuda_graphs=module)
    assert str(refused.value) == (
        f"--cuda-graphs {module}: there is no span of a {what} in these traces, so what the graphs "
        "would hold is unknown; record with --torch-profile-spans phases modules."
    )


def test_a_launch_bound_recording_is_told_what_graphs_of_its_layers_would_gain() -> None:
    table = {one.change: one for one in torch_trace.whatif(SAMPLES / "tp2pp2-spans").candidates}
    graphs, launches = table["--cuda-graphs layers"], table["--launch 0"]
    assert graphs.finding == "launch_bound"
    assert graphs.gain_ns > 5 * launches.gain_ns
    assert graphs.is_distinguishable


def test_checks_in_hooks_of_a_few_layers_are_beside_their_graphs() -> None:
    answer = torch_trace.whatif(SAMPLES / "dp2-spans", "--cuda-graphs layers")
    assert answer.simulated_ns < 0.5 * answer.recorded_ns
