# SPDX-License-Identifier: Apache-2.0
"""What runs for the first time does so in the warm-up, not in the recorded iteration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from recordings import end, make, spans, train
from recordings import signals as signals

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore::FutureWarning")


def test_hooks_are_set_in_the_warm_up_and_none_when_the_recording_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooked: list[int] = []
    register = torch.nn.Module.register_forward_pre_hook

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        hooked.append(iteration)
        return register(self, *args, **kwargs)

    monkeypatch.setattr(torch.nn.Module, "register_forward_pre_hook", counted)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    recorder = make(tmp_path, model=[model], spans=["modules"], warmup=2, active=2)
    for iteration in range(1, 8):
        train(recorder, range(iteration, iteration + 1), model)
    end(recorder)
    assert hooked == [2, 2, 2]
    assert not any(module._forward_pre_hooks for module in model.modules())
    (trace,) = tmp_path.rglob("*.json.gz")
    assert spans(trace, "ProfilerStep", "0: Linear") == [
        "ProfilerStep#4",
        "0: Linear",
        "ProfilerStep#5",
        "0: Linear",
    ]


def test_a_training_that_ends_in_the_warm_up_leaves_no_hook(
    tmp_path: Path, warned: list[str]
) -> None:
    model = torch.nn.Linear(4, 4)
    recorder = make(tmp_path, model=[model], spans=["modules"], warmup=3)
    train(recorder, range(1, 4), model)
    assert model._forward_pre_hooks
    end(recorder)
    assert not model._forward_pre_hooks
    assert warned == ["training ended in the warm-up of iteration 5: no trace"]


def test_without_a_warm_up_hooks_are_set_before_the_first_recorded_iteration(
    tmp_path: Path,
) -> None:
    model = torch.nn.Linear(4, 4)
    recorder = make(tmp_path, model=[model], spans=["modules"], warmup=0)
    train(recorder, range(1, 4), model)
    end(recorder)
    (trace,) = tmp_path.rglob("*.json.gz")
    assert spans(trace, "ProfilerStep", "model: Linear") == ["ProfilerStep#2", "model: Linear"]


def test_a_window_of_the_preset_light_ends_with_operators_on(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 4)
    recorder = make(tmp_path, model=[model], no_operators=True)
    train(recorder, range(1, 5), model)
    end(recorder)
    (trace,) = tmp_path.rglob("*.json.gz")
    assert spans(trace, "") == ["ProfilerStep#3", "work of 3"]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as after:
        torch.ones(3).cumsum(0)
    assert "aten::cumsum" in [event.name for event in after.events()]
