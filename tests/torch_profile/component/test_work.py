# SPDX-License-Identifier: Apache-2.0
"""FLOPs of a step: of attention with a causal mask, and of what only the trace shows."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's documents call it so
from trace_builder import TraceBuilder

from megatron.torch_profile.component.component import Component
from megatron.torch_profile.component.config import Direction
from megatron.torch_profile.component.measure.traced_flops import traced_flops
from megatron.torch_profile.component.measure.work import Work, with_flops, work_of
from megatron.torch_profile.component.step import Step
from megatron.torch_profile.component.variants import Case

WHOLE = 4 * 2 * 4 * 64 * 64 * 8
"""Of 2 batches of 4 heads of 64 tokens."""


@pytest.mark.parametrize(
    ("causal", "direction", "flops"),
    [
        (False, "forward", WHOLE),
        (True, "forward", WHOLE // 2),
        (False, "forward-backward", WHOLE * 7 // 2),
        (True, "forward-backward", WHOLE * 7 // 4),
    ],
)
def test_a_causal_mask_halves_fused_attention(
    causal: bool, direction: Direction, flops: int
) -> None:
    inputs = tuple(torch.randn(2, 4, 64, 8, requires_grad=True) for _ in range(3))
    case = Case("", (), "attention", {}, {}, "float32", direction, None, None, None)
    keywords = {"is_causal": causal}
    step = Step(Component(F.scaled_dot_product_attention, inputs, keywords), case, "cpu")
    work = work_of(step)
    assert work is not None
    assert work.flops == flops


def of_engine(tmp_path: Path, function: str) -> Path:
    builder = TraceBuilder()
    for number, begin in ((1, 0), (2, 1000)):
        builder.step(number, begin, begin + 1000)
        builder.op(function, begin, begin + 100, args={"Input Dims": [[7, 5], [3, 5], []]})
        builder.gpu("nvjet_sm90_tst_64x64", begin + 200, begin + 210, launch=begin + 20)
    return builder.write(tmp_path / "rank-0.pt.trace.json")


def test_flops_of_transformer_engine_come_from_the_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = of_engine(tmp_path, "_Linear")
    assert traced_flops(trace, 2) is None
    monkeypatch.setitem(sys.modules, "transformer_engine", ModuleType("transformer_engine"))
    assert traced_flops(trace, 2) == 2 * 3 * 5 * 7


def test_flops_of_an_unknown_product_stay_what_torch_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformer_engine", ModuleType("transformer_engine"))
    assert traced_flops(of_engine(tmp_path, "_Unheard"), 2) is None


def test_the_higher_count_of_flops_is_taken() -> None:
    work = Work(100, 8)
    assert with_flops(work, None) is work
    assert with_flops(work, 90) is work
    assert with_flops(work, 210) == Work(210, 8)
    assert with_flops(None, 210) is None
