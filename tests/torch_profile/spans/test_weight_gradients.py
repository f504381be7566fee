# SPDX-License-Identifier: Apache-2.0
"""Weight gradients that Megatron asks for after the backward pass of their module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from recorded_spans import recorded

from megatron.torch_profile.spans.modules import module_spans


class Linear(torch.nn.Linear):
    """Counts how often it was asked."""

    asked = 0

    def backward_dw(self) -> None:
        self.asked += 1


class Mlp(torch.nn.Module):
    """Asks its part, as Megatron's do."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = Linear(2, 2)

    def forward(self, tensor: Any) -> Any:
        return self.fc1(tensor)

    def backward_dw(self, *, shared: bool = False) -> bool:
        self.fc1.backward_dw()
        return shared


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = Mlp()

    def forward(self, tensor: Any) -> Any:
        return self.mlp(tensor)


LATER = [("mlp: Mlp (weight gradient)", 0), ("mlp.fc1: Linear (weight gradient)", 1)]


def test_a_module_and_its_part_leave_spans_and_what_they_return(tmp_path: Path) -> None:
    model = Model()
    with recorded(tmp_path / "trace.json") as found, module_spans([model]):
        assert model.mlp.backward_dw(shared=True)
    assert found == LATER
    assert model.mlp.fc1.asked == 1


def test_backward_spans_are_drawn_all_the_same(tmp_path: Path) -> None:
    model = Model()
    path = tmp_path / "trace.json"
    with recorded(path, draw=True) as found, module_spans([model], backward=False):
        model(torch.ones(1, 2, requires_grad=True)).sum().backward()
        model.mlp.backward_dw()
    assert [name for name, _ in found if "(backward)" in name] == [
        "model: Model (backward)", "mlp: Mlp (backward)", "mlp.fc1: Linear (backward)",
    ]  # fmt: skip
    assert found[-2:] == LATER


def test_a_depth_that_leaves_the_module_out_leaves_its_span_out(tmp_path: Path) -> None:
    model = Model()
    with recorded(tmp_path / "trace.json") as found, module_spans([model], 1):
        model.mlp.backward_dw()
    assert found == LATER[:1]


def test_after_the_window_a_module_is_as_before_and_what_a_plan_kept_leaves_nothing(
    tmp_path: Path,
) -> None:
    model = Model()
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    with module_spans([model]):
        kept = model.mlp.backward_dw
    after = {name: dict(vars(module)) for name, module in model.named_modules()}
    for attributes in (*before.values(), *after.values()):
        for hooks in ("_forward_hooks", "_forward_pre_hooks"):
            assert not attributes[hooks]
    assert {name: set(found) for name, found in after.items()} == {
        name: set(found) for name, found in before.items()
    }
    with recorded(tmp_path / "trace.json") as found:
        assert kept(shared=True)
    assert found == []


def test_what_megatron_has_put_on_a_module_itself_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    own = lambda: None  # noqa: E731
    monkeypatch.setitem(vars(model.mlp), "backward_dw", own)
    with module_spans([model]):
        assert model.mlp.backward_dw is own
    assert model.mlp.backward_dw is own
