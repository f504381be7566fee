# SPDX-License-Identifier: Apache-2.0
"""Spans of modules and phases: names, nesting, and gradients that are what they were."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from megatron.torch_profile.config import PRESETS, TorchProfileConfig
from megatron.torch_profile.module_spans import ModuleSpans, module_spans
from megatron.torch_profile.phase_spans import Phases, Schedule, _NamedTimer

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore::FutureWarning")


class Layer(torch.nn.Module):
    """x + mlp(norm(x)), as a transformer's layer goes around its blocks."""

    def __init__(self, recompute: bool = False) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(4)
        self.mlp = torch.nn.Linear(4, 4)
        self.recompute = recompute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        if self.recompute:
            return x + checkpoint(self.mlp, y, use_reentrant=False)
        return x + self.mlp(y)


class Block(torch.nn.Module):
    """Layers in a row; the last one's output is the block's own."""

    def __init__(self, **options: bool) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Layer(**options) for _ in range(2)])
        self.identity = torch.nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.identity(x)


class Model(torch.nn.Module):
    def __init__(self, **options: bool) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(3, 4)
        self.decoder = Block(**options)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.embedding(tokens))


@contextmanager
def recorded(path: Path) -> Iterator[list[tuple[str, int]]]:
    """Filled, at the end, with every annotation and how deep it lies, in order of time."""
    found: list[tuple[str, int]] = []
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        yield found
    profiler.export_chrome_trace(str(path))
    events = [
        (float(e["ts"]), -float(e["dur"]), e["name"])
        for e in json.loads(path.read_text())["traceEvents"]
        if e.get("cat") == "user_annotation"
    ]
    ends: list[float] = []
    for start, negative, name in sorted(events):
        while ends and ends[-1] <= start:
            ends.pop()
        assert not ends or start - negative <= ends[-1], f"{name} crosses the span around it"
        found.append((name, len(ends)))
        ends.append(start - negative)


def step(model: torch.nn.Module) -> None:
    model(torch.tensor([[0, 1, 2]])).square().sum().backward()


def test_forward_and_backward_of_every_module_nest_as_the_modules_do(tmp_path: Path) -> None:
    model = Model()
    with recorded(tmp_path / "trace.json") as found, module_spans([model]):
        step(model)
    assert found == [
        ("model: Model", 0),
        ("embedding: Embedding", 1),
        ("decoder: Block", 1),
        ("decoder.layers.0: Layer", 2),
        ("decoder.layers.0.norm: LayerNorm", 3),
        ("decoder.layers.0.mlp: Linear", 3),
        ("decoder.layers.1: Layer", 2),
        ("decoder.layers.1.norm: LayerNorm", 3),
        ("decoder.layers.1.mlp: Linear", 3),
        ("decoder.identity: Identity", 2),
        # The model has no input with a gradient, and its last module made its output.
        ("decoder: Block (backward)", 0),
        ("decoder.layers.1: Layer (backward)", 1),
        ("decoder.layers.1.mlp: Linear (backward)", 2),
        ("decoder.layers.1.norm: LayerNorm (backward)", 2),
        ("decoder.layers.0: Layer (backward)", 1),
        ("decoder.layers.0.mlp: Linear (backward)", 2),
        ("decoder.layers.0.norm: LayerNorm (backward)", 2),
        ("embedding: Embedding (backward)", 0),
    ]


class LastStage(torch.nn.Module):
    """As a pipeline stage with a loss: its input is set, not passed, and the loss is its own."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = torch.nn.Linear(4, 4)
        self.decoder.input_tensor = torch.ones(2, 4, requires_grad=True)

    def forward(self) -> torch.Tensor:
        return self.decoder(self.decoder.input_tensor.detach().requires_grad_()).square().sum()


def test_the_models_own_work_has_a_span_too(tmp_path: Path) -> None:
    model = LastStage()
    with recorded(tmp_path / "trace.json") as found, module_spans([model]):
        model().backward()
    assert found == [
        ("model: LastStage", 0),
        ("decoder: Linear", 1),
        ("model: LastStage (backward)", 0),
        ("decoder: Linear (backward)", 0),
    ]


class Tied(torch.nn.Module):
    """An output layer that is given the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(3, 4)
        self.output_layer = Output()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.output_layer(self.embedding(tokens), weight=self.embedding.weight)


class Output(torch.nn.Module):
    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, weight)


def test_a_tied_weight_does_not_keep_the_output_layers_backward_open(tmp_path: Path) -> None:
    model = Tied()
    with recorded(tmp_path / "trace.json") as found, module_spans([model]):
        step(model)
    assert found[-2:] == [
        ("output_layer: Output (backward)", 0),
        ("embedding: Embedding (backward)", 0),
    ]


def test_recomputation_inside_the_backward_pass_is_named_so(tmp_path: Path) -> None:
    model = Model(recompute=True)
    with recorded(tmp_path / "trace.json") as found, module_spans([model]):
        step(model)
    names = [name for name, _ in found]
    assert names.count("decoder.layers.1.mlp: Linear") == 1
    assert names.count("decoder.layers.1.mlp: Linear (recompute)") == 1
    assert names.index("decoder: Block (backward)") < names.index(
        "decoder.layers.1.mlp: Linear (recompute)"
    )


def test_gradients_are_the_same_to_the_bit() -> None:
    gradients = []
    for watch in (False, True):
        torch.manual_seed(0)
        model = Model(recompute=True)
        spans = ModuleSpans([model]) if watch else None
        step(model)
        gradients.append([p.grad for p in model.parameters()])
        if spans:
            spans.remove()
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_nothing_is_left_on_the_model() -> None:
    model = Model()
    with module_spans([model]):
        step(model)
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert not module._backward_hooks


def test_depth_and_chunks(tmp_path: Path) -> None:
    wrapped = torch.nn.Module()
    wrapped.module = Model()
    chunks = [wrapped, Model()]
    with recorded(tmp_path / "trace.json") as found, module_spans(chunks, depth=1):
        for chunk in (wrapped.module, chunks[1]):
            chunk(torch.tensor([[0]]))
    assert [name for name, _ in found] == [
        "chunk0.model: Model",
        "chunk0.embedding: Embedding",
        "chunk0.decoder: Block",
        "chunk1.model: Model",
        "chunk1.embedding: Embedding",
        "chunk1.decoder: Block",
    ]


def test_a_backward_that_never_comes_leaves_nothing_open(tmp_path: Path) -> None:
    model = Model()
    with recorded(tmp_path / "trace.json") as found, module_spans([model]):
        output = model(torch.tensor([[0]]))
        # Only up to the first layer's output: the gradient of its inputs is never complete.
        torch.autograd.grad(output.sum(), model.decoder.layers[1].mlp.weight)
    assert "decoder: Block (backward)" in [name for name, _ in found]


# Stage 0 of 4 with 8 micro-batches, and stage 0 of 2 with 2 chunks and 4 micro-batches.
@pytest.mark.parametrize(
    ("schedule", "forwards", "backwards"),
    [
        pytest.param(Schedule(4, 0, 1, 8), "wwwsssss", "sssssccc", id="first stage"),
        pytest.param(Schedule(4, 3, 1, 8), "ssssssss", "ssssssss", id="last stage"),
        pytest.param(Schedule(4, 0, 1, 2), "ww", "cc", id="fewer micro-batches than stages"),
        pytest.param(Schedule(2, 0, 2, 4), "wwwwssss", "sssscccc", id="interleaved, first"),
        pytest.param(Schedule(2, 1, 2, 4), "wwssssss", "sssssscc", id="interleaved, last"),
    ],
)
def test_the_place_in_1f1b(schedule: Schedule, forwards: str, backwards: str) -> None:
    said = {
        direction: "".join(schedule.phase(direction, i)[0] for i in range(len(expected)))
        for direction, expected in (("forward", forwards), ("backward", backwards))
    }
    assert said == {"forward": forwards, "backward": backwards}


def test_a_backward_has_the_number_of_the_forward_whose_output_it_gets(tmp_path: Path) -> None:
    phases = Phases()
    schedule = Schedule(2, 0, 2, 2)
    chunks = [SimpleNamespace(vp_stage=0), SimpleNamespace(module=SimpleNamespace(vp_stage=1))]
    outputs = []
    with recorded(tmp_path / "trace.json") as found:
        for chunk in (0, 0, 1, 1):
            span, remember = phases.forward(chunks[chunk], None, schedule)
            with span:
                outputs.append([torch.ones(1)])
            remember((outputs[-1], "tokens"))
        for output in (outputs[2], outputs[3], outputs[0]):
            with phases.backward(output, schedule):
                pass
        with phases.backward([torch.ones(1)], None):
            pass
    assert [name for name, _ in found] == [
        "forward micro-batch 0 chunk 0 (warmup)",
        "forward micro-batch 1 chunk 0 (warmup)",
        "forward micro-batch 0 chunk 1 (warmup)",
        "forward micro-batch 1 chunk 1 (warmup)",
        "backward micro-batch 0 chunk 1 (cooldown)",
        "backward micro-batch 1 chunk 1 (cooldown)",
        "backward micro-batch 0 chunk 0 (cooldown)",
        "backward micro-batch",
    ]


def test_timers_leave_spans_and_stay_what_they_were(tmp_path: Path) -> None:
    calls: list[str] = []
    timer = SimpleNamespace(
        start=lambda barrier=False: calls.append(f"start {barrier}"),
        stop=lambda: calls.append("stop"),
        elapsed=lambda: 3.5,
    )
    phases = Phases()
    with recorded(tmp_path / "trace.json") as found:
        _NamedTimer(timer, "optimizer", phases).stop()  # began before the window
        _NamedTimer(timer, "optimizer", phases).start(barrier=True)
        _NamedTimer(timer, "optimizer", phases).stop()
        _NamedTimer(timer, "interval-time", phases).start()
        _NamedTimer(timer, "forward-backward", phases).start()
        phases.close()  # the window closes
    assert [name for name, _ in found] == ["optimizer", "forward-backward"]
    assert calls == ["stop", "start True", "stop", "start False", "start False"]
    assert _NamedTimer(timer, "x", phases).elapsed() == 3.5


def test_kinds_of_spans_however_they_are_asked_for() -> None:
    assert TorchProfileConfig().wanted_spans == frozenset()
    assert TorchProfileConfig(with_modules=True).wanted_spans == {"modules"}
    assert TorchProfileConfig(spans=["phases"], with_modules=True).wanted_spans == {
        "phases",
        "modules",
    }
    both = TorchProfileConfig(spans=["modules"], preset="overlap").with_preset()
    assert both.wanted_spans == {"phases", "modules"}
    assert PRESETS["full"]["spans"] == ["phases", "modules"]
