# SPDX-License-Identifier: Apache-2.0
"""--overlap-moe-expert-parallel-comm: micro-batches whose nodes take turns, and its warm-up."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from recorded_spans import recorded

from megatron.torch_profile.spans import phases as phase_spans
from megatron.torch_profile.spans import pipeline_schedule

COMBINED = """
from nodes import ScheduleNode
def combined_forward_backward_step(
    forward_step_func, data_iterator, f_model, num_microbatches, input_tensor, forward_data_store,
    b_model, b_input_tensor, b_output_tensor, b_output_tensor_grad, config, current_microbatch=None,
):
    nodes = [ScheduleNode(), ScheduleNode()]
    if b_model is not None:
        nodes[1].backward(b_output_tensor)
    for node in nodes:
        if f_model is not None:
            node.forward()
    if b_model is not None:
        nodes[0].backward(b_output_tensor)
    if num_microbatches == 0:
        raise ValueError("no micro-batch")
    return ([object()] if f_model is not None else None), 1, None
"""
NODES = """
class ScheduleNode:
    def forward(self, inputs=()):
        return "forward"
    def backward(self, output_grad):
        return "backward"
"""


@pytest.fixture
def combined(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Megatron's two modules, as far as the seam goes, and no pipeline."""
    modules = {}
    for name, source in ((phase_spans._NODES, NODES), (phase_spans._COMBINED, COMBINED)):
        modules[name] = module = ModuleType(name)
        monkeypatch.setitem(sys.modules, "nodes", modules[phase_spans._NODES])
        exec(source, vars(module))
        monkeypatch.setitem(sys.modules, name, module)
    state = SimpleNamespace(get_pipeline_model_parallel_world_size=lambda: 1)
    monkeypatch.setattr(pipeline_schedule, "_parallel_state", lambda: state)
    return modules[phase_spans._COMBINED]


def call(module: Any, forward: bool, output: Any, count: int = 2) -> Any:
    """As Megatron's schedule without a pipeline calls it."""
    model = "model"
    return module.combined_forward_backward_step(
        "step", "data", model if forward else None, count, None, [],
        model if output is not None else None, None, output, None, config=SimpleNamespace(),
    )  # fmt: skip


def test_every_turn_of_a_micro_batch_has_its_name(tmp_path: Path, combined: Any) -> None:
    own = combined.combined_forward_backward_step
    with recorded(tmp_path / "trace.json") as found, phase_spans.phase_spans() as phases:
        phases.begin_step()
        first, _, _ = call(combined, True, None)
        second, _, _ = call(combined, True, first)
        call(combined, False, second)
        with pytest.raises(ValueError):
            call(combined, True, None, count=0)
        assert phases.open == []
    forward, backward = (f"{word} micro-batch {{}}, part" for word in ("forward", "backward"))
    assert [name for name, _ in found] == [
        *[forward.format(0)] * 2,
        backward.format(0),
        *[forward.format(1)] * 2,
        backward.format(0),
        *[backward.format(1)] * 2,
        *[forward.format(2)] * 2,
    ]
    assert combined.combined_forward_backward_step is own


DELAYED = """
class TransformerLayerNode:
    delay_wgrad_compute = True
    def backward_dw(self):
        return "weight gradients"
"""


@pytest.mark.parametrize("module", ["common.utils", "gpt.fine_grained_callables"])
@pytest.mark.parametrize(("delays", "spans"), [(True, 1), (False, 0)])
def test_delayed_weight_gradients_are_a_turn_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, delays: bool, spans: int
) -> None:
    name = f"megatron.core.models.{module}"
    nodes = ModuleType(name)
    exec(DELAYED, vars(nodes))
    monkeypatch.setitem(sys.modules, name, nodes)
    node = nodes.TransformerLayerNode()
    node.delay_wgrad_compute = delays
    with recorded(tmp_path / "trace.json") as found, phase_spans.phase_spans() as phases:
        phases.backward_piece = "backward micro-batch 1 (steady)"
        assert node.backward_dw() == "weight gradients"
    assert [name for name, _ in found] == spans * ["backward micro-batch 1 (steady), part"]


def test_nodes_outside_of_a_step_have_no_span(tmp_path: Path, combined: Any) -> None:
    with recorded(tmp_path / "trace.json") as found, phase_spans.phase_spans():
        assert sys.modules[phase_spans._NODES].ScheduleNode().forward() == "forward"
    assert found == []


def test_a_combined_step_of_another_kind_costs_its_spans_only(
    combined: Any, warned: list[str]
) -> None:
    with phase_spans.phase_spans():
        result = phase_spans._combined_step(lambda batch: batch, None, (3,), {})
    assert result == 3
    assert warned == ["training goes on without spans of phases: KeyError: 'num_microbatches'"]


@pytest.mark.parametrize(
    ("function", "places"),
    [
        (lambda count, chunks, group, **more: (8, False, 4 + len(more), 3), "wwwwwsss"),
        (None, "wwwwssss"),
    ],
    ids=["Megatron's own count", "older than core 0.13"],
)
def test_the_warm_up_is_as_long_as_megatron_says(
    monkeypatch: pytest.MonkeyPatch, function: Any, places: str
) -> None:
    module = ModuleType(pipeline_schedule._SCHEDULES)
    if function is not None:
        module.get_pp_rank_microbatches = function  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, pipeline_schedule._SCHEDULES, module)
    pipeline_schedule._megatrons_warmup.cache_clear()
    state = SimpleNamespace(
        get_pipeline_model_parallel_world_size=lambda: 2,
        get_pipeline_model_parallel_rank=lambda: 0,
        get_virtual_pipeline_model_parallel_world_size=lambda: 2,
    )
    monkeypatch.setattr(pipeline_schedule, "_parallel_state", lambda: state)
    config = SimpleNamespace(overlap_moe_expert_parallel_comm=True)
    schedule = pipeline_schedule.schedule_of(4, config)
    pipeline_schedule._megatrons_warmup.cache_clear()
    assert schedule is not None
    assert "".join(schedule.phase("forward", index)[0] for index in range(8)) == places
