# SPDX-License-Identifier: Apache-2.0
"""Backward spans that are drawn afterwards are those that hooks would have left."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from layered_models import LastStage, Model, Tied, send, step
from recorded_spans import events_of, recorded

from megatron.torch_profile.export import messages
from megatron.torch_profile.export.compression import DRAW_BACKWARD, compress, main
from megatron.torch_profile.export.trace_export import Export
from megatron.torch_profile.plan.schedule import Window
from megatron.torch_profile.spans.modules import module_spans
from megatron.torch_trace.format.file_names import TraceName
from megatron.torch_trace.rewrite.backward_spans.event_columns import EventColumns

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore::FutureWarning")


class Doubling(torch.autograd.Function):
    """A function of the user's own, which autograd runs as one node."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


class Doubler(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        doubled: torch.Tensor = Doubling.apply(x)
        return doubled


def in_flight(model: torch.nn.Module) -> None:
    """Two micro-batches, as a pipeline has them."""
    first, second = (model(torch.tensor([[token]])).sum() for token in (0, 1))
    first.backward()
    second.backward()


def twice(model: torch.nn.Module) -> None:
    output = model(torch.tensor([[0]])).sum()
    output.backward(retain_graph=True)
    output.backward()


def reduced(model: torch.nn.Module) -> None:
    """As Megatron's DDP does, which sends a bucket's gradients when the last of them is there."""
    weight = model.embedding.weight
    reduce = weight.expand_as(weight).grad_fn.next_functions[0][0]
    reduce.register_hook(send)
    step(model)


@pytest.mark.parametrize(
    ("make", "train"),
    [
        pytest.param(Model, step, id="layers"),
        pytest.param(LastStage, lambda model: model().backward(), id="an input that is set"),
        pytest.param(Tied, step, id="a tied weight"),
        pytest.param(lambda: Model(recompute=True), step, id="recomputation"),
        pytest.param(
            lambda: Model(recompute=True, reentrant=True), step, id="reentrant recomputation"
        ),
        pytest.param(Model, in_flight, id="micro-batches in flight"),
        pytest.param(Model, twice, id="a graph that is run twice"),
        pytest.param(Model, reduced, id="what a gradient sets off"),
        pytest.param(
            lambda: torch.nn.Sequential(torch.nn.Linear(4, 4), Doubler()),
            lambda model: model(torch.ones(2, 4)).sum().backward(),
            id="a function of the user's",
        ),
    ],
)
def test_spans_nest_as_those_of_hooks_do(
    tmp_path: Path, make: Callable[[], Any], train: Callable[[Any], None]
) -> None:
    found = []
    for draw in (False, True):
        model = make()
        with (
            recorded(tmp_path / "trace.json", draw=draw) as spans,
            module_spans([model], backward=not draw),
        ):
            train(model)
        found.append(spans)
    assert found[0] == found[1]
    assert any(name.endswith("(backward)") for name, _ in found[0])


def test_what_a_weights_gradient_sets_off_lies_inside_the_module(tmp_path: Path) -> None:
    path, model = tmp_path / "trace.json", Model()
    with recorded(path, draw=True), module_spans([model], backward=False):
        reduced(model)
    (sent,) = events_of(path, "cpu_op", "aten::cumsum")
    (span,) = events_of(path, "user_annotation", "embedding: Embedding (backward)")
    assert span["ts"] < sent["ts"] < span["ts"] + span["dur"]
    assert span["args"] == {"drawn from": "Sequence number"}


def test_training_that_is_recorded_so_has_no_hook_in_its_graph() -> None:
    model = Model()
    with module_spans([model], backward=False):
        output = model(torch.tensor([[0, 1, 2]]))
        assert output.grad_fn.metadata == {}
        output.sum().backward()


@pytest.mark.parametrize("compression", ["gzip", "none"])
def test_the_program_that_compresses_draws_them(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    compression: str,
) -> None:
    monkeypatch.setattr("os.nice", lambda _: 0)
    raw, model = tmp_path / "raw.json", Model()
    with recorded(raw), module_spans([model], backward=False):
        step(model)
    plain = tmp_path / "plain.json"
    plain.write_bytes(raw.read_bytes())
    target = tmp_path / "trace.json"
    main([str(raw), str(target), compression, DRAW_BACKWARD])
    written = json.loads(capsys.readouterr().out)
    assert written["events"] == compress(plain, tmp_path / "other", "none").events + 9
    assert not raw.exists()


def test_where_they_cannot_be_drawn_the_trace_is_whole_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warned: list[str]
) -> None:
    def fails(*_: Any) -> None:
        raise MemoryError("no room")

    raw, model = tmp_path / "raw.json", Model()
    with recorded(raw), module_spans([model], backward=False):
        step(model)
    whole = raw.read_bytes()
    monkeypatch.setattr(EventColumns, "add", fails)
    written = compress(raw, tmp_path / "trace.json", "none", draw_backward=True)
    assert (tmp_path / "trace.json").read_bytes() == whole
    export = Export(3, Window(1, 1, 1), (1,), tmp_path, TraceName(3, 4))
    messages.done(export, written, 0.0, 0.0)
    assert warned == ["rank 3: the trace has no backward spans of modules: MemoryError: no room"]
