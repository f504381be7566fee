# SPDX-License-Identifier: Apache-2.0
"""Nodes that exchange tokens of experts outside of any module's forward."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from recorded_spans import recorded

from megatron.torch_profile.spans.modules import module_spans

PLAN = "megatron.core.models.common.model_chunk_schedule_plan"
SOURCE = """
from types import SimpleNamespace
class TransformerLayerSchedulePlan:
    def __init__(self, layer, is_moe=True):
        self.layer = layer
        self._build_callable_nodes(is_moe)
    def _build_callable_nodes(self, is_moe):
        one = lambda tokens: tokens + 1
        make = lambda: SimpleNamespace(forward_func=one) if is_moe else object()
        self.moe_dispatch, self.moe_combine = make(), make()
"""


class AllToAllDispatcher:
    """No module."""


class Experts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token_dispatcher = AllToAllDispatcher()

    def forward(self, tokens: Any) -> Any:
        raise AssertionError("never called as a whole")


class Layer(torch.nn.Module):
    def __init__(self, mlp: torch.nn.Module) -> None:
        super().__init__()
        self.mlp = mlp


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Megatron's plan of a layer, as far as the seam goes."""
    module = ModuleType(PLAN)
    exec(SOURCE, vars(module))
    monkeypatch.setitem(sys.modules, PLAN, module)
    return module.TransformerLayerSchedulePlan


def run(plan: Any) -> list[int]:
    return [node.forward_func(1) for node in (plan.moe_dispatch, plan.moe_combine)]


def names(path: Path, plan: Any, model: Any, layer: Any, depth: int | None = None) -> list[str]:
    with recorded(path) as found, module_spans([model], depth):
        assert run(plan(layer)) == [2, 2]
    return [name for name, _ in found]


def test_both_nodes_of_a_layer_have_the_name_of_its_dispatcher(tmp_path: Path, plan: Any) -> None:
    model = torch.nn.Sequential(Layer(torch.nn.Linear(2, 2)), Layer(Experts()))
    found = names(tmp_path / "trace.json", plan, model, model[1])
    assert found == ["1.mlp.token_dispatcher: AllToAllDispatcher"] * 2


def test_a_layer_of_multi_token_prediction_has_its_layer_inside(tmp_path: Path, plan: Any) -> None:
    model = torch.nn.Sequential(Layer(Experts()))
    outer = SimpleNamespace(mtp_model_layer=model[0])
    found = names(tmp_path / "trace.json", plan, model, outer)
    assert found == ["0.mlp.token_dispatcher: AllToAllDispatcher"] * 2


def test_a_path_that_is_too_deep_has_none(tmp_path: Path, plan: Any) -> None:
    model = torch.nn.Sequential(Layer(Experts()))
    assert names(tmp_path / "two.json", plan, model, model[0], depth=2) == []
    assert len(names(tmp_path / "three.json", plan, model, model[0], depth=3)) == 2


def test_a_layer_without_experts_and_one_of_no_model_are_left_alone(
    tmp_path: Path, plan: Any
) -> None:
    model = torch.nn.Sequential(Layer(torch.nn.Linear(2, 2)))
    with module_spans([model]):
        plan(model[0], is_moe=False)
    assert names(tmp_path / "trace.json", plan, model, Layer(Experts())) == []


def test_after_the_window_nodes_are_built_as_megatron_builds_them(plan: Any) -> None:
    own = plan._build_callable_nodes
    with module_spans([torch.nn.Sequential(Layer(Experts()))]):
        assert plan._build_callable_nodes is not own
    assert plan._build_callable_nodes is own
