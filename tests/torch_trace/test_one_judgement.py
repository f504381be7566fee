# SPDX-License-Identifier: Apache-2.0
"""What several commands judge, each by the same function: impossible times, and names of steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import invoked
from trace_builder import event, kernel, launch, step, text, write

from megatron.torch_trace.columns.slice_table import read_table
from megatron.torch_trace.inspect.survey import AWAY, LONG, survey
from megatron.torch_trace.perfetto.convert import convert
from megatron.torch_trace.rewrite.slim.time_ranges import find_steps
from megatron.torch_trace.tracks.impossible_times import BlockTimes, Reach, far_times

FAULTS = Path(__file__).parents[1] / "data" / "faults"
HOURS_6 = 6 * 3600 * 10**9
WORK = [
    step(3, 100_000, 1_000_000),
    *[event(f"op{i}", 1000 * (100 + i), 1_000, tid=9) for i in range(60)],
    launch(110_000, 115_000, 7),
    kernel("gemm", 120_000, 150_000, 7),
]


def analysis_of(path: Path) -> dict[str, Any]:
    output = invoked("analyze", path, "--json").stdout
    found: dict[str, Any] = json.loads(output)["ranks"][0]
    return found


def checked(path: Path) -> tuple[int, dict[str, Any]]:
    result = invoked("check", path, "--json")
    status = getattr(result.exception, "exit_status", 0)
    return status, json.loads(result.stdout)["traces"][0]["odd_times"]


@pytest.mark.parametrize(
    ("odd", "kind"),
    [
        (event("late", HOURS_6, 1_000), AWAY),
        (event("early", -HOURS_6, 1_000), AWAY),
        (event("long", 130_000, HOURS_6), LONG),
    ],
)
def test_an_event_that_is_hours_away_is_left_out_and_said_by_all(
    tmp_path: Path, odd: str, kind: str
) -> None:
    data = text(*WORK, odd)
    path = write(tmp_path / "rank-0.json", data)
    assert checked(path) == (3, {kind: {"count": 1, "offset": data.index(odd.encode())}})
    assert survey(path).span_ns == (100_000, 1_000_000)
    analysed = analysis_of(path)
    assert (analysed["odd_times"], analysed["window_ns"]) == (1, 900_000)
    assert read_table(path).odd_times.far == 1
    notes = convert(path, tmp_path / "t.pftrace").notes
    assert [note for note in notes if "impossibly far away" in note and ": 1 event " in note]


def test_an_event_a_few_minutes_away_is_of_the_trace_for_all(tmp_path: Path) -> None:
    path = write(tmp_path / "rank-0.json", text(*WORK, event("late", 600_000_000_000, 1_000)))
    assert checked(path) == (0, {})
    assert analysis_of(path)["odd_times"] == 0
    assert read_table(path).odd_times.far == 0


def test_blocks_are_judged_as_the_whole(tmp_path: Path) -> None:
    """A trace of many blocks, longer than an hour, with one that is far away as a whole."""
    random = np.random.default_rng(1)
    starts = np.sort(random.integers(0, 2 * 3600 * 10**9, 20_000))
    blocks = [*np.split(starts, 20), starts[:50] + 10**18]
    durations = [random.integers(0, 10**9, len(block)) for block in blocks]
    durations[3][7] = 10**17
    looks = [
        BlockTimes.of(number, ts, dur, np.arange(len(ts)))
        for number, (ts, dur) in enumerate(zip(blocks, durations, strict=True))
    ]
    found = far_times(looks)
    held = Reach.of(np.concatenate(blocks)).holds(np.concatenate(blocks), np.concatenate(durations))
    assert (found.away, found.long) == (50, 1)
    assert found.away + found.long == int((~held).sum())
    assert (found.first_away, found.first_long) == ((20, 0), (3, 7))


def spelled(name: str, category: str) -> list[str]:
    marks = [event(name % number, number * 100_000, 100_000, cat=category) for number in (3, 4)]
    return [*marks, launch(310_000, 315_000, 7), kernel("gemm", 320_000, 350_000, 7)]


@pytest.mark.parametrize("name", ["ProfilerStep#%d", "ProfilerStep # %d", "ProfilerStep# %d"])
@pytest.mark.parametrize("category", ["user_annotation", "cpu_op", "Operator"])
def test_steps_are_the_same_for_info_slim_and_analyze(
    tmp_path: Path, name: str, category: str
) -> None:
    path = write(tmp_path / "rank-0.json", text(*spelled(name, category)))
    assert [number for number, *_ in survey(path).steps] == [3, 4]
    assert [one.number for one in find_steps(path)] == [3, 4]
    assert [one["step"] for one in analysis_of(path)["steps"]] == [3, 4]
    out = tmp_path / "one.json"
    result = invoked("slim", path, "--step", "4", "-o", out)
    assert (result.exception, out.exists()) == (None, True)


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("ProfilerStep#%d", "gpu_user_annotation"),
        ("ProfilerStep %d", "cpu_op"),
        ("MyProfilerStep#%d", "user_annotation"),
    ],
)
def test_what_marks_no_step_marks_none_for_all(tmp_path: Path, name: str, category: str) -> None:
    path = write(tmp_path / "rank-0.json", text(*spelled(name, category)))
    assert survey(path).steps == []
    assert find_steps(path) == []
    assert analysis_of(path)["steps"] == []


def test_steps_of_torch_1_8_are_found_by_all() -> None:
    path = FAULTS / "14-torch18-step-category.json"
    assert [number for number, *_ in survey(path).steps] == [3, 4]
    assert [one.number for one in find_steps(path)] == [3, 4]
    assert [one["step"] for one in analysis_of(path)["steps"]] == [3, 4]


def test_times_at_both_ends_of_what_64_bits_hold_are_judged_without_a_warning() -> None:
    ends = np.array([-(2**62), 2**62] * 200)
    assert Reach.of(ends).holds(ends, np.zeros_like(ends)).all()
