# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  (a line that users read stands on one line)
"""`torch-trace memory PATH --against BASE`: what grew, what is new, what is gone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from command_line import invoked
from snapshot_builder import MIB, SnapshotBuilder
from trace_builder import TraceBuilder, instant

from megatron import torch_trace
from megatron.torch_trace.errors import DamagedTraceError, StrictError, UsageError

FORWARD = ("mlp.py:3 forward", "transformer_layer.py:9 forward")
ADAM = ("/site/torch/optim/adam.py:178 _init_group", "core/optimizer/optimizer.py:3 step")
CACHE = ("/old/run/model/cache.py:7 keep", "/old/run/train.py:9 forward_step")
MOVED = ("/new/run/model/cache.py:8 keep", "/new/run/train.py:12 forward_step")


def run(*args: object) -> Result:
    return invoked("memory", *args)


def written(path: Path, *blocks: tuple[int, tuple[str, ...]], passing: int = 0) -> Path:
    """A snapshot in which `blocks` are there at the end, and so many MiB were at the peak."""
    built = SnapshotBuilder()
    for size, stack in blocks:
        built.alloc(size * MIB, *stack)
    if passing:
        built.free(built.alloc(passing * MIB, *FORWARD))
    path.parent.mkdir(exist_ok=True)
    return built.write(path)


def test_what_grew_what_is_new_and_what_is_gone_are_told_apart(tmp_path: Path) -> None:
    base = written(tmp_path / "a.pickle", (4, ADAM), (2, ("gone.py:1 forward",)), passing=8)
    path = written(tmp_path / "b.pickle", (7, ADAM), (1, ("new.py:1 forward",)), passing=8)
    found = torch_trace.memory_difference(path, base).largest
    assert found.at_peak.total.change == 2 * MIB
    assert [(one.name, one.kind, one.change) for one in found.at_peak.stacks] == [
        ("optimizer.py step", "grew", 3 * MIB),
        ("gone.py forward", "gone", -2 * MIB),
        ("new.py forward", "new", 1 * MIB),
    ]
    assert [(one.name, one.change) for one in found.at_peak.categories] == [
        ("optimizer state", 3 * MIB),
        ("activations", -1 * MIB),
    ]


def test_the_peak_and_the_end_are_two_answers(tmp_path: Path) -> None:
    base = written(tmp_path / "a.pickle", (4, ADAM), passing=8)
    path = written(tmp_path / "b.pickle", (4, ADAM), passing=5)
    found = torch_trace.memory_difference(path, base).largest
    assert [one.change for one in found.at_peak.modules] == [-3 * MIB]
    assert (found.at_end.total.change, found.at_end.modules) == (0, ())


def test_a_stack_stays_the_same_when_its_lines_and_folders_move(tmp_path: Path) -> None:
    base = written(tmp_path / "a.pickle", (4, CACHE))
    path = written(tmp_path / "b.pickle", (6, MOVED))
    (change,) = torch_trace.memory_difference(path, base).largest.at_end.stacks
    assert (change.kind, change.change, change.stack) == ("grew", 2 * MIB, MOVED)


def test_a_function_of_another_package_s_file_is_another_one(tmp_path: Path) -> None:
    base = written(tmp_path / "a.pickle", (4, ("/run/model/cache.py:7 keep",)))
    path = written(tmp_path / "b.pickle", (6, ("/run/data/cache.py:7 keep",)))
    found = torch_trace.memory_difference(path, base).largest.at_end.stacks
    assert [(one.kind, one.change // MIB) for one in found] == [("new", 6), ("gone", -4)]


def test_a_category_that_is_gone_is_told(tmp_path: Path) -> None:
    base = written(tmp_path / "a.pickle", (4, ADAM), (2, FORWARD))
    path = written(tmp_path / "b.pickle", (2, FORWARD))
    found = torch_trace.memory_difference(path, base).largest.at_end.categories
    assert [(one.name, one.kind) for one in found] == [
        ("optimizer state", "gone"),
        ("activations", "same"),
    ]


def test_the_rank_whose_peak_changes_most_may_be_one_that_shrank(tmp_path: Path) -> None:
    for rank, (before, after) in enumerate(((4, 5), (9, 3), (4, 6))):
        name = f"rank-{rank}.memory_snapshot.pickle"
        written(tmp_path / "a" / name, (before, ADAM))
        written(tmp_path / "b" / name, (after, ADAM))
    assert torch_trace.memory_difference(tmp_path / "b", tmp_path / "a").largest.rank == 1


def test_a_rank_that_only_one_file_tells_is_the_rank_of_both(tmp_path: Path) -> None:
    named = written(tmp_path / "rank-7.memory_snapshot.pickle", (4, ADAM))
    plain = written(tmp_path / "plain.pickle", (5, ADAM))
    for path, base in ((named, plain), (plain, named)):
        assert torch_trace.memory_difference(path, base).largest.rank == 7


def test_a_trace_does_not_tell_what_lies_free_between_blocks(tmp_path: Path) -> None:
    args = {"Addr": 1, "Bytes": MIB, "Device Type": 1, "Device Id": 0}
    args |= {"Total Allocated": MIB, "Total Reserved": MIB}
    event = instant("[memory]", 10, cat="cpu_instant_event", args=args)
    trace = TraceBuilder().add(event).write(tmp_path / "rank-0.json")
    snapshot = written(tmp_path / "a.pickle", (4, ADAM))
    for path, base in ((trace, snapshot), (snapshot, trace)):
        assert torch_trace.memory_difference(path, base).largest.scattered is None
    assert torch_trace.memory_difference(snapshot, snapshot).largest.scattered is not None


def test_two_lines_of_a_function_that_did_not_move_are_two_stacks(tmp_path: Path) -> None:
    first, second = ("adam.py:1 init", "a.py:1 step"), ("adam.py:2 init", "a.py:1 step")
    base = written(tmp_path / "a.pickle", (4, first), (4, second))
    path = written(tmp_path / "b.pickle", (4, first), (5, second))
    (change,) = torch_trace.memory_difference(path, base).largest.at_end.stacks
    assert (change.stack, change.change) == (second, MIB)


def test_it_is_printed(tmp_path: Path) -> None:
    base = written(tmp_path / "a.pickle", (4, ADAM))
    path = written(tmp_path / "b.pickle", (7, ADAM), (1, FORWARD))
    assert run(path, "--against", base).output.replace(f"{tmp_path}/", "") == (
        "b.pickle  GPU 0\n"
        "against a.pickle\n"
        "Peak: 8.39 MB in use, 4.19 MB more than before; torch had at most 8.39 MB from CUDA, 4.19 MB more than before.\n"
        "\n"
        "at the peak       before    after    change\n"
        "optimizer state  4.19 MB  7.34 MB  +3.15 MB\n"
        "activations            -  1.05 MB  +1.05 MB\n"
        "all              4.19 MB  8.39 MB  +4.19 MB\n"
        "\n"
        "module              before    after    change\n"
        "optimizer.py step  4.19 MB  7.34 MB  +3.15 MB  grew\n"
        "mlp.py forward           -  1.05 MB  +1.05 MB  new\n"
        "\n"
        "stack                                              for               before    after    change\n"
        "adam.py:178 _init_group < optimizer.py:3 step      optimizer state  4.19 MB  7.34 MB  +3.15 MB  grew\n"
        "mlp.py:3 forward < transformer_layer.py:9 forward  activations            -  1.05 MB  +1.05 MB  new\n"
        "\n"
        "At the end it is the same as at the peak.\n"
        "\n"
    )


def test_ranks_are_compared_with_themselves_and_the_rest_is_named(tmp_path: Path) -> None:
    for rank in range(3):
        written(tmp_path / "a" / f"rank-{rank}.memory_snapshot.pickle", (4, ADAM))
    for rank in range(1, 4):
        written(tmp_path / "b" / f"rank-{rank}.memory_snapshot.pickle", (4 + rank, ADAM))
    shown = run(tmp_path / "b", "--against", tmp_path / "a").output
    assert [line.split()[0] for line in shown.splitlines()[:3]] == ["rank", "1", "2"]
    assert f"{tmp_path}/b/rank-2.memory_snapshot.pickle  rank 2  GPU 0\n" in shown
    assert shown.endswith("Only BASE has rank 0.\nOnly PATH has rank 3.\n")


def test_json_has_every_rank_and_the_one_that_changes_most(tmp_path: Path) -> None:
    for rank in range(2):
        written(tmp_path / "a" / f"rank-{rank}.memory_snapshot.pickle", (4, ADAM))
        written(tmp_path / "b" / f"rank-{rank}.memory_snapshot.pickle", (4 + rank, ADAM))
    found = json.loads(run(tmp_path / "b", "--against", tmp_path / "a", "--json").stdout)
    sizes = {"before": 4 * MIB, "after": 5 * MIB, "change": MIB}
    assert (found["schema"], found["rank"], found["peak_bytes"]) == (1, 1, sizes)
    assert found["at_peak"]["categories"] == {"optimizer_state": sizes}
    assert found["at_end"]["stacks"] == [
        {
            "module": "optimizer.py step",
            "category": "optimizer_state",
            "kind": "grew",
            **sizes,
            "stack": list(ADAM),
        }
    ]
    assert [one["peak_bytes"]["change"] for one in found["ranks"]] == [0, MIB]
    assert (found["only_before"], found["only_after"]) == ([], [])


def test_one_file_is_compared_with_one_file_whatever_their_ranks(tmp_path: Path) -> None:
    base = written(tmp_path / "rank-0.memory_snapshot.pickle", (4, ADAM))
    path = written(tmp_path / "rank-2.memory_snapshot.pickle", (5, ADAM))
    assert torch_trace.memory_difference(path, base).largest.at_peak.total.change == MIB


def test_a_rank_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    for folder in ("iter-1", "iter-2"):
        written(tmp_path / folder / "rank-0.memory_snapshot.pickle", (4, ADAM))
    ended = run(tmp_path, "--against", tmp_path / "iter-1")
    assert isinstance(ended.exception, UsageError)
    assert "2 snapshots with rank 0; name one window's folder, or one file." in str(ended.exception)


def test_no_rank_on_both_sides_is_refused(tmp_path: Path) -> None:
    for folder, ranks in (("a", (0, 1)), ("b", (2, 3))):
        for rank in ranks:
            written(tmp_path / folder / f"rank-{rank}.memory_snapshot.pickle", (4, ADAM))
    ended = run(tmp_path / "a", "--against", tmp_path / "b")
    assert isinstance(ended.exception, UsageError)
    assert "no rank is on both sides" in str(ended.exception)


@pytest.mark.parametrize("damaged", ["a.pickle", "b.pickle"])
def test_damage_on_either_side_is_said(tmp_path: Path, damaged: str) -> None:
    base = written(tmp_path / "a.pickle", (4, ADAM))
    path = written(tmp_path / "b.pickle", (5, ADAM))
    (tmp_path / damaged).write_bytes((tmp_path / damaged).read_bytes()[:-3])
    ended = run(path, "--against", base)
    assert isinstance(ended.exception, DamagedTraceError)
    assert damaged in str(ended.exception)
    assert isinstance(run(path, "--against", base, "--strict").exception, StrictError)
