# SPDX-License-Identifier: Apache-2.0
"""Spans of modules: names, nesting, and gradients that are what they were."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded_spans import events_of, recorded
from torch.utils.checkpoint import checkpoint

from megatron.torch_profile.spans.backward import BackwardSpans
from megatron.torch_profile.spans.modules import ModuleSpans, SpanCount, count_spans, module_spans

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore::FutureWarning")


class Layer(torch.nn.Module):
    """x + mlp(norm(x)), as a transformer's layer goes around its blocks."""

    def __init__(self, recompute: bool = False, reentrant: bool = False) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.norm = torch.nn.LayerNorm(4)
        self.mlp = torch.nn.Linear(4, 4)
        self.recompute = recompute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        if self.recompute:
            return x + checkpoint(self.mlp, y, use_reentrant=self.reentrant)
        return x + self.mlp(y)


class Block(torch.nn.Module):
    """Layers in a row, and a part that does nothing, of which a trace need not speak."""

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


def send(*_: object) -> None:
    """Stands for a reduce-scatter: an operator that nothing else here calls."""
    torch.ones(3).cumsum(0)


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
        ("model: Model (backward)", 0),
        ("decoder: Block (backward)", 1),
        ("decoder.layers.1: Layer (backward)", 2),
        ("decoder.layers.1.mlp: Linear (backward)", 3),
        ("decoder.layers.1.norm: LayerNorm (backward)", 3),
        ("decoder.layers.0: Layer (backward)", 2),
        ("decoder.layers.0.mlp: Linear (backward)", 3),
        ("decoder.layers.0.norm: LayerNorm (backward)", 3),
        ("embedding: Embedding (backward)", 1),
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
        ("decoder: Linear (backward)", 1),
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
    assert found[-3:] == [
        ("model: Tied (backward)", 0),
        ("output_layer: Output (backward)", 1),
        ("embedding: Embedding (backward)", 1),
    ]


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_inside_the_backward_pass_is_named_so(
    tmp_path: Path, reentrant: bool
) -> None:
    model = Model(recompute=True, reentrant=reentrant)
    with recorded(tmp_path / "trace.json") as found, module_spans([model]):
        step(model)
    mlp = [name.partition("Linear")[2] for name, _ in found if "layers.1.mlp" in name]
    # Without reentrance it is a saved tensor of the layer's that asks for the forward again.
    in_pass = [" (recompute)", " (backward)"] if reentrant else [" (backward)", " (recompute)"]
    assert mlp == ["", *in_pass]
    depth = dict(found)
    outer = depth["decoder.layers.1: Layer (backward)"]
    assert depth["decoder.layers.1.mlp: Linear (recompute)"] > outer


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


def test_what_a_weights_gradient_sets_off_lies_inside_the_module(tmp_path: Path) -> None:
    model = Model()
    weight = model.embedding.weight
    reduce = weight.expand_as(weight).grad_fn.next_functions[0][0]
    # As Megatron's DDP does, which sends a bucket's gradients when the last of them is there.
    reduce.register_hook(send)
    path = tmp_path / "trace.json"
    with recorded(path), module_spans([model]):
        step(model)
    spans = events_of(path, "user_annotation")
    (sent,) = events_of(path, "cpu_op", "aten::cumsum")
    (embedding,) = [e for e in spans if e["name"] == "embedding: Embedding (backward)"]
    assert embedding["ts"] < sent["ts"] < embedding["ts"] + embedding["dur"]


def test_micro_batches_in_flight_do_not_end_each_others_spans(tmp_path: Path) -> None:
    model = Model()
    with recorded(tmp_path / "trace.json") as found, module_spans([model]):
        first, second = (model(torch.tensor([[token]])).sum() for token in (0, 1))
        first.backward()
        second.backward()
    assert [name for name, _ in found].count("embedding: Embedding (backward)") == 2


def test_a_backward_after_the_window_leaves_no_span(tmp_path: Path) -> None:
    model = Model()
    with module_spans([model]):
        output = model(torch.tensor([[0, 1, 2]])).square().sum()
    with recorded(tmp_path / "trace.json") as found:
        output.backward()
    assert found == []


class CudaGraphManager(torch.nn.Module):
    """As Megatron's: it asserts that nobody has hooked what it captures."""

    def check(self, graphed: torch.nn.Module) -> None:
        for module in graphed.modules():
            assert not module._forward_pre_hooks, "Tried to cudagraph a module with user hooks"


class GraphedLayer(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.cudagraph_manager = CudaGraphManager()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.cudagraph_manager.check(self)
        return super().__call__(*args, **kwargs)


def test_what_is_inside_cuda_graphs_is_not_touched(tmp_path: Path) -> None:
    model = Model()
    model.decoder.layers[0] = GraphedLayer()
    model.decoder.layers[1].cuda_graphs = []  # Transformer Engine's
    with recorded(tmp_path / "trace.json") as found, module_spans([model]):
        step(model)
        layers = model.decoder.layers
        assert not [m for layer in layers for m in layer.modules() if m._forward_hooks]
    assert [name for name, _ in found] == [
        "model: Model",
        "embedding: Embedding",
        "decoder: Block",
        "model: Model (backward)",
        "decoder: Block (backward)",
        "embedding: Embedding (backward)",
    ]


@pytest.mark.parametrize("core", ["0.8", "0.10", "0.11"])
def test_a_block_whose_dictionary_of_cuda_graphs_is_empty_has_spans(
    core: str, tmp_path: Path
) -> None:
    model = Model()
    model.decoder.cuda_graphs = {}  # every TransformerBlock of these versions
    if core != "0.8":
        model.decoder.current_microbatch = -1
    with recorded(tmp_path / "trace.json") as found, module_spans([model]):
        step(model)
    assert ("decoder.layers.1.mlp: Linear", 3) in found
    assert count_spans([model]) == SpanCount(9)


def test_a_block_whose_dictionary_holds_graphs_is_not_touched(tmp_path: Path) -> None:
    model = Model()
    model.decoder.cuda_graphs = {0: [object()], 1: [object()]}
    with recorded(tmp_path / "trace.json") as found, module_spans([model]):
        step(model)
    assert not [name for name, _ in found if name.startswith("decoder")]
    assert count_spans([model]) == SpanCount(2, in_graphs=7)


def test_modules_are_counted_before_anything_is_hooked() -> None:
    model = Model()
    model.decoder.layers[0] = GraphedLayer()
    assert str(count_spans([Model()])) == "9 modules"
    assert str(count_spans([Model()], depth=1)) == "3 modules"
    assert str(count_spans([model])) == "6 modules; the 3 in CUDA graphs get none"
    assert not any(module._forward_hooks for module in model.modules())


@pytest.fixture
def compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.usefixtures("compiler")
def test_a_function_that_is_compiled_with_a_module_in_it_holds_nothing_of_ours(
    tmp_path: Path,
) -> None:
    model = Model()
    layer = torch.compile(lambda x: model.decoder.layers[0](x), backend="eager", fullgraph=True)
    x = torch.ones(2, 4)
    with recorded(tmp_path / "trace.json") as found, module_spans([model]):
        inside = layer(x)
    assert not [name for name, _ in found if name.startswith("decoder")]
    assert torch.equal(inside, layer(x))


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("how", ["wrapped", "forward", "in place"])
def test_what_torch_compile_must_take_whole_is_not_touched(how: str, tmp_path: Path) -> None:
    model = Model()
    layer: Any = model.decoder.layers[0]
    if how == "wrapped":
        model.decoder.layers[0] = torch.compile(layer, backend="eager", fullgraph=True)
    elif how == "forward":
        layer.forward = torch.compile(layer.forward, backend="eager", fullgraph=True)
    else:
        layer.compile(backend="eager", fullgraph=True)
    with recorded(tmp_path / "trace.json") as found, module_spans([model]):
        step(model)  # compiles here, in the window
    names = [name for name, _ in found]
    assert not [name for name in names if name.startswith("decoder.layers.0")]
    assert "decoder.layers.1: Layer" in names


class Fused(torch.nn.Module):
    """As Megatron's fused MLPs: it calls what is hooked on its parts before, and nothing after."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = torch.nn.Linear(4, 4)
        self.kept: list[Any] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept = self.kept or list(self.fc1._forward_pre_hooks.values())
        for hook in self.kept:
            assert hook(self.fc1, None) is None
        return torch.nn.functional.linear(x, self.fc1.weight)


def test_hooks_that_a_fused_module_calls_and_keeps_leave_nothing_open(tmp_path: Path) -> None:
    model = torch.nn.Sequential(Fused(), torch.nn.Linear(4, 4))
    with recorded(tmp_path / "trace.json") as found:
        with module_spans([model]) as spans:
            model(torch.ones(4))
        model(torch.ones(4))
        assert spans._forward == []
    assert found == [
        ("model: Sequential", 0),
        ("0: Fused", 1),
        ("0.fc1: Linear", 2),
        ("1: Linear", 1),
    ]


@pytest.mark.parametrize("broken", ["watch", "opened"])
def test_a_failure_in_a_hook_is_said_once_and_training_goes_on(
    monkeypatch: pytest.MonkeyPatch, warned: list[str], broken: str
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("no hook for this tensor")

    monkeypatch.setattr(BackwardSpans, broken, fails)
    model = Model()
    with module_spans([model]):
        step(model)
        step(model)
    assert warned == [
        "training goes on without spans of modules: RuntimeError: no hook for this tensor"
    ]


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
