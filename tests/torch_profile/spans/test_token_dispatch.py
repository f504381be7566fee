# SPDX-License-Identifier: Apache-2.0
"""What exchanges tokens between experts is no module, and has spans of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from recorded_spans import recorded
from torch.utils.checkpoint import checkpoint

from megatron.torch_profile.spans.modules import module_spans


class AllToAllDispatcher:
    """Megatron's names; it changes nothing but the count of its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def token_dispatch(self, tokens: Any, probabilities: Any) -> tuple[Any, Any]:
        self.calls += 1
        return tokens * 2, probabilities

    def token_combine(self, tokens: Any) -> Any:
        return tokens / 2


class OldDispatcher:
    """Of core 0.13 and before."""

    def token_permutation(self, tokens: Any) -> Any:
        return tokens


class Experts(torch.nn.Module):
    def __init__(self, dispatcher: Any) -> None:
        super().__init__()
        self.token_dispatcher = dispatcher
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, tokens: Any) -> Any:
        tokens, _ = self.token_dispatcher.token_dispatch(tokens, None)
        return self.token_dispatcher.token_combine(self.linear(tokens))


class Layer(torch.nn.Module):
    def __init__(self, mlp: torch.nn.Module) -> None:
        super().__init__()
        self.mlp = mlp

    def forward(self, tokens: Any) -> Any:
        return self.mlp(tokens)


EXCHANGE = "0.mlp.token_dispatcher: AllToAllDispatcher"


@pytest.fixture
def model() -> Any:
    return torch.nn.Sequential(Layer(Experts(AllToAllDispatcher())))


def test_an_exchange_is_a_part_of_its_layer(tmp_path: Path, model: Any) -> None:
    with recorded(tmp_path / "trace.json") as found, module_spans([model], backward=False):
        model(torch.ones(1, 2))
    assert [one for one in found if one[0].startswith("0.mlp")] == [
        ("0.mlp: Experts", 2), (EXCHANGE, 3), ("0.mlp.linear: Linear", 3), (EXCHANGE, 3),
    ]  # fmt: skip


def test_its_backward_pass_is_drawn(tmp_path: Path, model: Any) -> None:
    path = tmp_path / "trace.json"
    with recorded(path, draw=True) as found, module_spans([model], backward=False):
        model(torch.ones(1, 2, requires_grad=True)).sum().backward()
    drawn = [name for name, _ in found if name.startswith("0.mlp") and "(backward)" in name]
    back = f"{EXCHANGE} (backward)"
    assert drawn == ["0.mlp: Experts (backward)", back, "0.mlp.linear: Linear (backward)", back]


def test_an_exchange_that_the_backward_pass_repeats_is_recomputation(
    tmp_path: Path, model: Any
) -> None:
    tokens = torch.ones(1, 2, requires_grad=True)
    with recorded(tmp_path / "trace.json") as found, module_spans([model], backward=False):
        checkpoint(model, tokens, use_reentrant=True).sum().backward()
    exchanges = [name for name, _ in found if name.startswith(EXCHANGE)]
    assert exchanges == [EXCHANGE] * 2 + [f"{EXCHANGE} (recompute)"] * 2


def test_an_exchange_that_no_module_does_has_a_span_all_the_same(
    tmp_path: Path, model: Any
) -> None:
    with recorded(tmp_path / "trace.json") as found, module_spans([model]):
        assert model[0].mlp.token_dispatcher.token_dispatch(1, 5) == (2, 5)
    assert found == [(EXCHANGE, 0)]


def test_a_dispatcher_of_an_old_megatron_has_spans(tmp_path: Path) -> None:
    model = torch.nn.Sequential(Layer(Experts(OldDispatcher())))
    with recorded(tmp_path / "trace.json") as found, module_spans([model]):
        assert model[0].mlp.token_dispatcher.token_permutation(1) == 1
    assert found == [("0.mlp.token_dispatcher: OldDispatcher", 0)]


def test_a_path_that_is_too_deep_has_none(tmp_path: Path, model: Any) -> None:
    for depth, spans in ((2, []), (3, [(EXCHANGE, 0)])):
        with recorded(tmp_path / f"{depth}.json") as found, module_spans([model], depth):
            model[0].mlp.token_dispatcher.token_combine(1)
        assert found == spans


def test_after_the_window_a_dispatcher_has_nothing_of_ours(tmp_path: Path, model: Any) -> None:
    dispatcher = model[0].mlp.token_dispatcher
    with module_spans([model]):
        kept = dispatcher.token_dispatch
    assert vars(dispatcher) == {"calls": 0}
    with recorded(tmp_path / "trace.json") as found:
        assert kept(1, 5) == (2, 5)
    assert (found, dispatcher.calls) == ([], 1)


def test_a_layer_that_is_compiled_around_it_is_compiled_whole(model: Any) -> None:
    def whole(tokens: Any) -> Any:
        return model[0].mlp.token_dispatcher.token_combine(tokens)

    compiled = torch.compile(whole, backend="eager", fullgraph=True)
    with module_spans([model]):
        assert compiled(torch.ones(2)).tolist() == [0.5, 0.5]


@pytest.mark.parametrize("theirs", ["wrapped", "gone"])
def test_what_somebody_has_put_in_the_place_of_ours_stays(model: Any, theirs: str) -> None:
    dispatcher = model[0].mlp.token_dispatcher
    own = vars(dispatcher)
    with module_spans([model], backward=False):
        ours = own.pop("token_combine")
        if theirs == "wrapped":
            own["token_combine"] = put = lambda tokens: ours(tokens) + 1
    assert own.get("token_combine") is (put if theirs == "wrapped" else None)
    assert "token_dispatch" not in own
