# SPDX-License-Identifier: Apache-2.0
"""`torch-trace memory -o memory.html`: written once, whole, with nothing loaded from anywhere."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from command_line import invoked
from snapshot_builder import MIB, SnapshotBuilder, block

from megatron.torch_trace.errors import UsageError


def curves(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="curves">(.*?)</script>', page)
    assert found
    return json.loads(found[1])  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def page(pipeline: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "memory.html"
    ended = invoked("memory", pipeline, "-o", path, "--gpu-memory", 0.2)
    assert ended.exit_code == 0
    return path.read_text()


def test_stages_are_drawn_one_below_the_other_on_the_same_axes(page: str) -> None:
    data = curves(page)
    assert [len(chart["ranges"]) for chart in data["charts"]] == [33] * 4
    assert re.findall(r"<h3>(Stage .*?) <span>", page) == [
        "Stage 0, rank 0",
        "Stage 1, rank 1",
        "Stage 2, rank 2",
        "Stage 3, rank 3",
    ]
    assert data["most"] == max(chart["peak_bytes"] for chart in data["charts"])
    assert all(data["start"] <= chart["times"][0] for chart in data["charts"])
    assert all(chart["times"][-1] <= data["end"] for chart in data["charts"])


def test_the_ramp_of_1f1b_is_in_the_curves(page: str) -> None:
    activations = [max(chart["categories"]["activations"]) for chart in curves(page)["charts"]]
    # Ten MiB a micro-batch in flight, and three that stay.
    assert activations == [(10 * n + 3) * 1024 for n in (4, 3, 2, 1)]


def test_the_peak_is_exact_and_the_curves_add_up_to_it(page: str) -> None:
    for chart in curves(page)["charts"]:
        held = sum(values[chart["peak"]] for values in chart["categories"].values())
        assert held * 1024 <= chart["peak_bytes"] < (held + len(chart["categories"])) * 1024


def test_names_from_a_snapshot_are_text(page: str) -> None:
    assert "<img" not in page
    assert "&lt;img src=x" in page


def test_nothing_is_loaded_and_the_licence_of_what_is_embedded_is_named(page: str) -> None:
    assert "default-src &#39;none&#39;" in page
    assert re.findall(r"(?:src|href)=[\"'](?!data:|#)[^\"']*", page) == []
    assert "The MIT License (MIT)" in page
    assert "uPlot 1.6.32 (MIT License, Copyright (c) 2022 Leon Sorokin)" in page


def test_a_page_that_is_there_stays(pipeline: Path, tmp_path: Path) -> None:
    path = tmp_path / "memory.html"
    path.write_text("mine")
    ended = invoked("memory", pipeline, "-o", path)
    assert isinstance(ended.exception, UsageError)
    assert "exists already" in str(ended.exception)
    assert path.read_text() == "mine"
    assert invoked("memory", pipeline, "-o", path, "--force").exit_code == 0
    assert path.read_text() != "mine"


def test_a_page_on_standard_output_stands_alone(pipeline: Path) -> None:
    assert invoked("memory", pipeline, "-o", "-").stdout.startswith("<!doctype html>")


def test_a_page_shows_one_state(pipeline: Path, tmp_path: Path) -> None:
    ended = invoked("memory", pipeline, "--against", pipeline, "-o", tmp_path / "memory.html")
    assert isinstance(ended.exception, UsageError)
    assert not (tmp_path / "memory.html").exists()


def test_many_ranks_are_drawn_as_far_as_a_page_goes(tmp_path: Path) -> None:
    for rank in range(20):
        built = SnapshotBuilder()
        built.free(built.alloc((1 + rank) * MIB, "mlp.py:3 forward"))
        built.write(tmp_path / f"rank-{rank:02d}.memory_snapshot.pickle")
    path = tmp_path / "memory.html"
    invoked("memory", tmp_path, "-o", path)
    text = path.read_text()
    assert len(curves(text)["charts"]) == 16
    assert "Of 20 ranks 16 are drawn" in text
    assert text.count("<tr><td") >= 20


def test_histories_that_do_not_overlap_count_from_their_own_begin(tmp_path: Path) -> None:
    for rank in range(2):
        built = SnapshotBuilder()
        built.alloc(MIB, "mlp.py:3 forward", time_us=1_000_000 * (rank + 1))
        built.alloc(MIB, "mlp.py:3 forward", time_us=1_000_000 * (rank + 1) + 500)
        built.write(tmp_path / f"rank-{rank}.memory_snapshot.pickle")
    path = tmp_path / "memory.html"
    invoked("memory", tmp_path, "-o", path)
    text = path.read_text()
    assert [chart["times"][-1] for chart in curves(text)["charts"]] == [500, 500]
    assert "each one counts from its own begin" in text


def test_a_snapshot_without_a_history_is_one_moment(tmp_path: Path) -> None:
    built = SnapshotBuilder()
    built.segment(block(4 * MIB), block(2 * MIB, state="inactive"))
    path = tmp_path / "memory.html"
    invoked("memory", built.write(tmp_path / "snapshot.pickle"), "-o", path)
    text = path.read_text()
    assert "There is no history: this is the moment of the snapshot." in text
    (chart,) = curves(text)["charts"]
    assert (chart["times"], chart["categories"]) == ([0, 1], {"unknown": [4096, 4096]})


def test_a_page_of_a_cut_snapshot_is_written_and_said_to_be_damaged(tmp_path: Path) -> None:
    built = SnapshotBuilder()
    built.alloc(MIB, "mlp.py:3 forward")
    path = built.write(tmp_path / "snapshot.pickle")
    path.write_bytes(path.read_bytes()[:-3])
    ended = invoked("memory", path, "-o", tmp_path / "memory.html")
    assert "damaged" in str(ended.exception)
    assert (tmp_path / "memory.html").exists()
    ended = invoked("memory", path, "-o", tmp_path / "strict.html", "--strict")
    assert not (tmp_path / "strict.html").exists()
