# SPDX-License-Identifier: Apache-2.0
"""Spans of modules: names, nesting, and gradients that are what they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from layered_models import LastStage, Model, Tied, send, step
from recorded_spans import events_of, recorded

from megatron.torch_profile.spans.backward import BackwardSpans
from megatron.torch_profile.spans.modules import ModuleSpans, module_spans

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore::FutureWarning")


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
