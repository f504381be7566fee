# SPDX-License-Identifier: Apache-2.0
"""What a span costs, and windows without operators."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded_spans import recorded
from torch import distributed

from megatron.torch_profile.config import TorchProfileConfig
from megatron.torch_profile.spans import backward, modules, ranges
from megatron.torch_profile.spans.modules import module_spans
from megatron.torch_profile.spans.window_spans import Spans

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore::FutureWarning")


def small_model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))


def step(model: torch.nn.Module) -> None:
    model(torch.ones(2, 4)).sum().backward()


def test_a_range_is_in_the_trace_what_record_function_leaves(tmp_path: Path) -> None:
    with recorded(tmp_path / "trace.json") as found, ranges.Range("outer"):
        begun = ranges.begin("inner")
        ranges.end(begun)
        with torch.profiler.record_function("the user's"):
            pass
    assert found == [("outer", 0), ("inner", 1), ("the user's", 1)]


def test_a_torch_without_the_cheap_way_records_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "_enter", ranges._enter_by_name)
    monkeypatch.setattr(ranges, "end", ranges._exit_by_name)
    with recorded(tmp_path / "trace.json") as found:
        ranges.end(ranges.begin("one"))
    assert found == [("one", 0)]


def test_no_span_of_a_module_goes_through_torchs_dispatcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.autograd.profiler.record_function, "__enter__", None)
    model = small_model()
    with module_spans([model]):
        step(model)


def test_names_of_spans_are_made_once_and_not_at_every_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[str] = []

    def begin(name: str) -> Any:
        begun.append(name)
        return ranges.begin(name)

    monkeypatch.setattr(modules, "begin", begin)
    monkeypatch.setattr(backward, "begin", begin)
    model = small_model()
    with module_spans([model]):
        step(model)
        step(model)
    first, second = begun[: len(begun) // 2], begun[len(begun) // 2 :]
    assert len(first) == 6
    assert all(one is other for one, other in zip(first, second, strict=True))


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of one."""
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def light(folder: Path, model: torch.nn.Module, **more: Any) -> dict[str, list[str]]:
    """Names of what a window of the preset records, by category."""
    config = TorchProfileConfig(preset="light", **more).with_preset()
    everywhere = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    reduce = distributed.all_reduce  # as Megatron does, which binds collectives where it imports
    spans = Spans(config, [model])
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], experimental_config=everywhere
    ) as profiler:
        spans.start()
        step(model)
        reduce(torch.ones(3))
        with torch.profiler.record_function("the user's"):
            torch.ones(3).cumsum(0)
        spans.close()
    profiler.export_chrome_trace(str(folder / "trace.json"))
    found: dict[str, list[str]] = {}
    for event in json.loads((folder / "trace.json").read_text())["traceEvents"]:
        if event.get("ph") == "X" and event["cat"] in ("cpu_op", "user_annotation"):
            found.setdefault(event["cat"], []).append(event["name"])
    return found


@pytest.mark.usefixtures("alone")
def test_the_preset_light_records_collectives_and_ranges_and_no_operator_of_the_model(
    tmp_path: Path,
) -> None:
    found = light(tmp_path, small_model(), spans=["modules"])
    assert "c10d::allreduce_" in found["cpu_op"]
    assert not [n for n in found["cpu_op"] if n.startswith(("aten::add", "aten::l", "autograd::"))]
    assert "aten::cumsum" not in found["cpu_op"]
    assert [n for n in found["user_annotation"] if "gloo" not in n] == [
        "model: Sequential",
        "0: Linear",
        "1: Linear",
        "model: Sequential (backward)",
        "1: Linear (backward)",
        "0: Linear (backward)",
        "the user's",
    ]


@pytest.mark.usefixtures("alone")
def test_after_a_light_window_torch_is_what_it_was(tmp_path: Path) -> None:
    group = dict(vars(distributed.ProcessGroup))
    enter = torch.autograd.profiler.record_function.__enter__
    light(tmp_path, small_model())
    assert dict(vars(distributed.ProcessGroup)) == group
    assert torch.autograd.profiler.record_function.__enter__ is enter
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as after:
        torch.ones(3).cumsum(0)
    assert "aten::cumsum" in [event.name for event in after.events()]


def test_a_range_of_another_thread_leaves_the_switch_of_that_thread_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    switched: list[bool] = []
    monkeypatch.setattr(ranges, "_switch", switched.append)
    ranges.hide_operators()
    thread = threading.Thread(target=lambda: ranges.end(ranges.begin("one")))
    thread.start()
    thread.join()
    assert switched == [False]
    ranges.end(ranges.begin("mine"))
    assert switched == [False, True, False]
    ranges.show_operators()
    ranges.show_operators()
    assert switched == [False, True, False, True]


def test_the_preset_light_keeps_the_spans_that_were_asked_for_beside_it() -> None:
    config = TorchProfileConfig(preset="light", spans=["sections"]).with_preset()
    assert (config.no_operators, config.spans) == (True, ["phases", "sections"])
