# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  (a line that users read stands on one line)
"""`torch-trace memory` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from command_line import invoked
from snapshot_builder import MIB, SnapshotBuilder, block, frames

from megatron import torch_trace
from megatron.torch_trace.errors import DamagedTraceError, StrictError, UsageError

FORWARD = ("mlp.py:3 forward", "transformer_layer.py:9 forward")
ADAM = ("/site/torch/optim/adam.py:178 _init_group", "core/optimizer/optimizer.py:3 step")


def run(*args: object) -> Result:
    return invoked("memory", *args)


def healthy() -> SnapshotBuilder:
    built = SnapshotBuilder()
    built.segment(block(6 * MIB, frames(*ADAM)), block(2 * MIB, state="inactive"))
    built.free(built.alloc(3 * MIB, *FORWARD), time_us=3_000_001)
    return built


def test_it_says_peak_categories_and_holders(tmp_path: Path) -> None:
    path = healthy().write(tmp_path / "rank-0.memory_snapshot.pickle")
    assert run(path).output.replace(str(tmp_path), "") == (
        "/rank-0.memory_snapshot.pickle  rank 0  GPU 0\n"
        "Peak: 9.44 MB in use; torch had at most 8.39 MB from CUDA. The history has 3 entries over 2 s.\n"
        "\n"
        "at the peak        bytes  share\n"
        "optimizer state  6.29 MB   67 %\n"
        "activations      3.15 MB   33 %\n"
        "\n"
        "holder               bytes  blocks  for              stack\n"
        "optimizer.py step  6.29 MB       1  optimizer state  adam.py:178 _init_group < optimizer.py:3 step\n"
        "mlp.py forward     3.15 MB       1  activations      mlp.py:3 forward < transformer_layer.py:9 forward\n"
    )


def test_json_is_the_fullest_rank_with_all_ranks_beside_it(tmp_path: Path) -> None:
    healthy().write(tmp_path / "rank-0.memory_snapshot.pickle")
    fuller = healthy()
    fuller.alloc(64 * MIB, *FORWARD)
    fuller.write(tmp_path / "rank-1.memory_snapshot.pickle")
    found = json.loads(run(tmp_path, "--json", "--top", 1).stdout)
    assert (found["schema"], found["rank"], found["peak_bytes"]) == (1, 1, 70 * MIB)
    assert found["categories"] == {"optimizer_state": 6 * MIB, "activations": 64 * MIB}
    assert found["holders"] == [
        {
            "bytes": 64 * MIB,
            "blocks": 1,
            "category": "activations",
            "module": "mlp.py forward",
            "stack": list(FORWARD),
        }
    ]
    assert [one["rank"] for one in found["ranks"]] == [0, 1]
    assert [one["peak_bytes"] for one in found["ranks"]] == [9 * MIB, 70 * MIB]


def test_several_ranks_are_a_table_and_the_fullest_in_full(tmp_path: Path) -> None:
    for rank in range(3):
        built = healthy()
        built.alloc((1 + rank % 2) * 4 * MIB, *FORWARD)
        built.write(tmp_path / f"rank-{rank}.memory_snapshot.pickle")
    lines = run(tmp_path).output.splitlines()
    assert lines[0] == str(tmp_path)
    assert [line.split()[0] for line in lines[1:5]] == ["rank", "0", "1", "2"]
    assert [line.endswith("fullest") for line in lines[1:5]] == [False, False, True, False]
    assert [line.split() for line in lines[6:10]] == [
        ["rank,", "at", "its", "peak", "optimizer", "state", "activations"],
        ["0", "6.29", "MB", "4.19", "MB"],
        ["1", "6.29", "MB", "8.39", "MB"],
        ["2", "6.29", "MB", "4.19", "MB"],
    ]
    assert lines[11].endswith("rank 1  GPU 0")


def test_python_has_the_same_answer(tmp_path: Path) -> None:
    path = healthy().write(tmp_path / "rank-0.memory_snapshot.pickle")
    (answer,) = torch_trace.memory(path)
    assert (answer.rank, answer.peak_bytes) == (0, 9 * MIB)


def test_damage_is_said_after_the_answer_and_forbidden_with_strict(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.memory_snapshot.pickle"
    whole = healthy().write(path).read_bytes()
    path.write_bytes(whole[:-3])
    ended = run(path)
    assert isinstance(ended.exception, DamagedTraceError)
    assert str(ended.exception) == f"damaged: {path}; the answer is about what is whole."
    assert "Peak: 9.44 MB" in ended.output
    ended = run(path, "--strict")
    assert isinstance(ended.exception, StrictError)
    assert ended.stdout == ""


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("absent.pickle", "absent.pickle: no such file or folder."),
        (
            "",
            "neither an allocator snapshot (such as rank-0.memory_snapshot.pickle) nor a trace in it.",
        ),
        ("empty.pickle", "the snapshot is empty: no memory and no history in it."),
    ],
)
def test_a_wrong_path_is_one_sentence(tmp_path: Path, name: str, reason: str) -> None:
    if name.startswith("empty"):
        SnapshotBuilder().write(tmp_path / name)
    ended = run(tmp_path / name)
    assert isinstance(ended.exception, UsageError)
    assert reason in str(ended.exception)


def test_names_from_a_file_are_shown_and_not_obeyed(tmp_path: Path) -> None:
    built = SnapshotBuilder()
    built.alloc(MIB, "[bold]x.py:1 \x1b[31mforward")
    shown = run(built.write(tmp_path / "rank-0.memory_snapshot.pickle")).output
    assert "[bold]x.py \\x1b[31mforward" in shown
