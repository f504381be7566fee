# SPDX-License-Identifier: Apache-2.0
"""Which backward is that of a micro-batch, where a loop calls several or in another order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from attached_training import Training, config, read, traces
from torch.utils.checkpoint import checkpoint

from megatron import torch_profile

DATA = torch.ones(4, 4)


def in_chunks(model: torch.nn.Module) -> None:
    """torchtitan's loss: backward through the last layer chunk by chunk, then through the rest."""
    last = torch.nn.Linear(4, 8)
    for _ in range(2):
        hidden = model(DATA)
        cut = hidden.detach().requires_grad_()
        for part in cut.chunk(2):
            last(part).square().mean().backward()
        hidden.backward(cut.grad)


def last_first(model: torch.nn.Module) -> None:
    losses = [model(DATA).square().mean() for _ in range(2)]
    for loss in reversed(losses):
        loss.backward()


def packed(model: torch.nn.Module) -> None:
    """As models of Hugging Face give their output."""
    call = model.forward
    model.forward = lambda data: {"logits": (call(data),), "name": "made"}  # type: ignore[assignment]
    for _ in range(2):
        (logits,) = model(DATA)["logits"]
        torch.autograd.backward([logits.square().mean()])
    model.forward = call


def computed_again(model: torch.nn.Module) -> None:
    """A backward runs inside another one."""
    call = model.forward
    model.forward = lambda data: checkpoint(call, data, use_reentrant=True)  # type: ignore[assignment]
    for _ in range(2):
        model(DATA.clone().requires_grad_()).square().mean().backward()
    model.forward = call


def of_no_model(model: torch.nn.Module) -> None:
    """What was computed before the model was called, and a penalty on its weights."""
    before = next(model.parameters()).square().sum()
    given = model(DATA).square().mean()
    before.backward()
    given.backward()
    next(model.parameters()).square().sum().backward()
    model(DATA).square().mean().backward()


FORWARD, BACKWARD = "forward micro-batch", "backward micro-batch"
IN_TURN = [f"{FORWARD} 0", f"{BACKWARD} 0", f"{FORWARD} 1", f"{BACKWARD} 1"]
LAST_FIRST = [f"{FORWARD} 0", f"{FORWARD} 1", f"{BACKWARD} 1", f"{BACKWARD} 0"]


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        (in_chunks, IN_TURN),
        (last_first, LAST_FIRST),
        (packed, IN_TURN),
        (computed_again, IN_TURN),
        (of_no_model, IN_TURN),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_backward_has_the_number_of_the_forward_whose_output_it_begins_at(
    train: Callable[[torch.nn.Module], None], expected: list[str], tmp_path: Path
) -> None:
    model = Training().model
    with torch_profile.attach(model, config=config(tmp_path, spans=["phases"])):
        for _ in range(3):
            with torch_profile.step():
                train(model)
    (trace,) = traces(tmp_path)
    spans = [
        event
        for event in read(trace)["traceEvents"]
        if event.get("cat") == "user_annotation" and "micro-batch" in event["name"]
    ]
    assert [one["name"] for one in sorted(spans, key=lambda one: float(one["ts"]))] == expected
