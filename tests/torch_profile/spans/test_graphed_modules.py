# SPDX-License-Identifier: Apache-2.0
"""Modules in CUDA graphs and in what torch.compile takes whole are not touched."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from layered_models import Layer, Model, step
from recorded_spans import recorded

from megatron.torch_profile.spans import graph_captures
from megatron.torch_profile.spans.model_parts import SpanCount, count_spans
from megatron.torch_profile.spans.modules import module_spans

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore::FutureWarning")


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


def test_what_is_inside_cuda_graphs_is_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where another test has loaded Megatron's module of graphs, a capture would be told.
    monkeypatch.delitem(sys.modules, graph_captures._MODULE, raising=False)
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


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Megatron's module of graphs, of which none is captured yet."""
    module: Any = ModuleType(graph_captures._MODULE)

    class Record:
        cudagraph_created = False

        @classmethod
        def create_cudagraphs(cls) -> str:
            cls.cudagraph_created = True
            return "captured"

    class Helper:
        def create_cudagraphs(self) -> str:
            return "captured"

    module._CudagraphGlobalRecord, module.TECudaGraphHelper = Record, Helper
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


class LaterGraphedLayer(Layer):
    """Checks its hooks from the capture on, as Megatron's does."""

    graphs: Any

    def __init__(self) -> None:
        super().__init__()
        self.cudagraph_manager = CudaGraphManager()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.graphs._CudagraphGlobalRecord.cudagraph_created:
            self.cudagraph_manager.check(self)
        return super().__call__(*args, **kwargs)


@pytest.mark.parametrize("kind", ["local", "transformer_engine"])
def test_what_will_be_captured_has_spans_until_it_is(
    kind: str, tmp_path: Path, graphs: Any
) -> None:
    LaterGraphedLayer.graphs = graphs
    model = Model()
    if kind == "local":
        model.decoder.layers[0] = LaterGraphedLayer()
    else:
        model.decoder.layers[0].cuda_graphs = []
    capture = graphs._CudagraphGlobalRecord.create_cudagraphs
    with recorded(tmp_path / "trace.json") as found, module_spans([model]):
        step(model)
        if kind == "local":
            assert graphs._CudagraphGlobalRecord.create_cudagraphs() == "captured"
        else:
            assert graphs.TECudaGraphHelper().create_cudagraphs() == "captured"
        assert not any(part._forward_hooks for part in model.decoder.layers[0].modules())
        step(model)
    names = [name for name, _ in found]
    assert [name for name in names if name.startswith("decoder.layers.0.mlp")] == [
        "decoder.layers.0.mlp: Linear"
    ]
    assert sum(name == "decoder.layers.1.mlp: Linear" for name in names) == 2
    assert graphs._CudagraphGlobalRecord.create_cudagraphs == capture
    assert count_spans([model]).in_graphs == 3


def test_what_was_captured_before_the_window_is_not_touched(graphs: Any) -> None:
    graphs._CudagraphGlobalRecord.cudagraph_created = True
    model = Model()
    model.decoder.layers[0] = GraphedLayer()
    with module_spans([model]):
        step(model)


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
