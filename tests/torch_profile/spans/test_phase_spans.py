# SPDX-License-Identifier: Apache-2.0
"""Spans of phases: micro-batches in 1F1B, Megatron's timers, and what is asked for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from recorded_spans import recorded

from megatron.torch_profile.config import PRESETS, TorchProfileConfig
from megatron.torch_profile.spans import phases as phase_spans
from megatron.torch_profile.spans import pipeline_schedule, sections
from megatron.torch_profile.spans.phases import Phases, _NamedTimer
from megatron.torch_profile.spans.pipeline_schedule import Schedule

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore::FutureWarning")


# Stage 0 of 4 with 8 micro-batches, and stage 0 of 2 with 2 chunks and 4 micro-batches.
@pytest.mark.parametrize(
    ("schedule", "forwards", "backwards"),
    [
        pytest.param(Schedule(4, 0, 1, 8), "wwwsssss", "sssssccc", id="first stage"),
        pytest.param(Schedule(4, 3, 1, 8), "ssssssss", "ssssssss", id="last stage"),
        pytest.param(Schedule(4, 0, 1, 2), "ww", "cc", id="fewer micro-batches than stages"),
        pytest.param(Schedule(2, 0, 2, 4), "wwwwssss", "sssscccc", id="interleaved, first"),
        pytest.param(Schedule(2, 1, 2, 4), "wwssssss", "sssssscc", id="interleaved, last"),
    ],
)
def test_the_place_in_1f1b(schedule: Schedule, forwards: str, backwards: str) -> None:
    said = {
        direction: "".join(schedule.phase(direction, i)[0] for i in range(len(expected)))
        for direction, expected in (("forward", forwards), ("backward", backwards))
    }
    assert said == {"forward": forwards, "backward": backwards}


def test_a_backward_has_the_number_of_the_forward_whose_output_it_gets(tmp_path: Path) -> None:
    phases = Phases()
    phases.schedule = Schedule(2, 0, 2, 2)
    chunks = [SimpleNamespace(vp_stage=0), SimpleNamespace(module=SimpleNamespace(vp_stage=1))]
    outputs = []
    with recorded(tmp_path / "trace.json") as found:
        for chunk in (0, 0, 1, 1):
            span, remember = phases.forward(chunks[chunk], None)
            with span:
                outputs.append([torch.ones(1)])
            remember((outputs[-1], "tokens"))
        for output in (outputs[2], outputs[3], outputs[0]):
            with phases.backward(output):
                pass
        phases.schedule = None
        with phases.backward([torch.ones(1)]):
            pass
    assert [name for name, _ in found] == [
        "forward micro-batch 0 chunk 0 (warmup)",
        "forward micro-batch 1 chunk 0 (warmup)",
        "forward micro-batch 0 chunk 1 (warmup)",
        "forward micro-batch 1 chunk 1 (warmup)",
        "backward micro-batch 0 chunk 1 (cooldown)",
        "backward micro-batch 1 chunk 1 (cooldown)",
        "backward micro-batch 0 chunk 0 (cooldown)",
        "backward micro-batch",
    ]


def test_timers_leave_spans_and_stay_what_they_were(tmp_path: Path) -> None:
    calls: list[str] = []
    timer = SimpleNamespace(
        start=lambda barrier=False: calls.append(f"start {barrier}"),
        stop=lambda: calls.append("stop"),
        elapsed=lambda: 3.5,
    )
    phases = Phases()
    with recorded(tmp_path / "trace.json") as found:
        _NamedTimer(timer, "optimizer", phases).stop()  # began before the window
        _NamedTimer(timer, "optimizer", phases).start(barrier=True)
        _NamedTimer(timer, "optimizer", phases).stop()
        _NamedTimer(timer, "interval-time", phases).start()
        _NamedTimer(timer, "forward-backward", phases).start()
        phases.close()  # the window closes
    assert [name for name, _ in found] == ["optimizer", "forward-backward"]
    assert calls == ["stop", "start True", "stop", "start False", "start False"]
    assert _NamedTimer(timer, "x", phases).elapsed() == 3.5


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module of Megatron's that marks sections, and the calls that reach Megatron's own marks."""
    module = ModuleType("megatron.marks")
    module.calls = []
    exec(
        "def nvtx_range_push(msg=None, suffix=None):\n    calls.append(('push', msg, suffix))\n"
        "def nvtx_range_pop(msg=None, suffix=None):\n    calls.append(('pop', msg, suffix))\n"
        "class Attention:\n"
        "    def forward(self):\n"
        "        nvtx_range_push(suffix='qkv')\n"
        "        nvtx_range_push('rotary')\n"
        "        nvtx_range_pop('rotary')\n"
        "        nvtx_range_pop(suffix='qkv')\n"
        "        nvtx_range_push(suffix='core')\n"
        "        raise ValueError\n",
        vars(module),
    )
    monkeypatch.setitem(sys.modules, "megatron.marks", module)
    sections._patches.cache_clear()
    yield module
    sections._patches.cache_clear()


def test_what_megatron_marks_for_nsight_leaves_spans_too(tmp_path: Path, marks: Any) -> None:
    push = marks.nvtx_range_push
    with recorded(tmp_path / "trace.json") as found, sections.section_spans():
        marks.nvtx_range_pop()  # began before the window
        with pytest.raises(ValueError):
            marks.Attention().forward()
    assert found == [
        ("section Attention.forward.qkv", 0),
        ("section rotary", 1),
        ("section Attention.forward.core", 0),
    ]
    assert marks.nvtx_range_push is push
    assert [call[0] for call in marks.calls] == ["pop", "push", "push", "pop", "pop", "push"]


def test_kinds_of_spans_however_they_are_asked_for() -> None:
    assert TorchProfileConfig().wanted_spans == frozenset()
    assert TorchProfileConfig(with_modules=True).wanted_spans == {"modules"}
    assert TorchProfileConfig(spans=["phases"], with_modules=True).wanted_spans == {
        "phases",
        "modules",
    }
    both = TorchProfileConfig(spans=["modules"], preset="overlap").with_preset()
    assert both.wanted_spans == {"phases", "modules"}
    assert PRESETS["full"]["spans"] == ["phases", "modules"]


def test_a_forward_step_of_another_kind_costs_its_span_only(warned: list[str]) -> None:
    def forward_step(batch: int, *, of: str) -> tuple[int, str]:
        return batch, of

    with phase_spans.phase_spans():
        for _ in range(2):
            result = phase_spans._forward_step(forward_step, None, (3,), {"of": "a fork"})
            assert result == (3, "a fork")
    assert warned == ["training goes on without spans of phases: KeyError: 'num_microbatches'"]


def test_a_forward_without_gradients_is_no_micro_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """train_rl.py computes log-probabilities with the same function, between two steps."""
    monkeypatch.setattr(phase_spans, "schedule_of", lambda *given: None)

    def forward_step(model: Any, num_microbatches: int) -> torch.Tensor:
        return torch.ones(1)

    with recorded(tmp_path / "trace.json") as found, phase_spans.phase_spans() as phases:
        phases.begin_step()
        for gradients in (True, False, True):
            with torch.set_grad_enabled(gradients):
                phase_spans._forward_step(forward_step, None, (None, 2), {})
    assert [name for name, _ in found] == ["forward micro-batch 0", "forward micro-batch 1"]


def test_a_schedule_without_megatrons_process_groups_costs_its_spans_only(
    warned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_initialized() -> int:
        raise AssertionError("pipeline_model parallel group is not initialized")

    state = SimpleNamespace(get_pipeline_model_parallel_world_size=not_initialized)
    monkeypatch.setattr(pipeline_schedule, "_parallel_state", lambda: state)

    def forward_step(model: Any, num_microbatches: int) -> int:
        return num_microbatches

    with phase_spans.phase_spans():
        assert phase_spans._forward_step(forward_step, None, (None, 4), {}) == 4
    assert len(warned) == 1


def test_a_name_that_a_megatron_lacks_never_ends_its_training() -> None:
    assert all(patch.since for patch in phase_spans._PATCHES._patches)


def test_a_section_has_a_name_on_python_3_10_too() -> None:
    frame: Any = SimpleNamespace(f_code=SimpleNamespace(co_name="forward"))
    assert sections._name(frame, suffix="core_attention") == "forward.core_attention"
