# SPDX-License-Identifier: Apache-2.0
"""A window has a memory snapshot, and the allocator keeps its history in no other iteration."""

from __future__ import annotations

import json
import os
import pickle
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from allocator_stand_in import GIB, Allocator, segment
from recordings import end, make, train
from recordings import signals as signals

from megatron.torch_profile.followers import followers
from megatron.torch_profile.memory import history, rank_memory
from megatron.torch_profile.memory.rank_memory import RankMemory
from megatron.torch_profile.record.recorder import Recorder


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    contents = {
        "segments": [segment((GIB, "active_allocated", ()))],
        "device_traces": [[{"action": "alloc", "addr": 1 << 40, "size": GIB, "frames": []}]],
    }
    allocator = Allocator(contents)
    allocator.install(monkeypatch)
    monkeypatch.setattr(rank_memory, "unavailable", lambda: None)
    return allocator


@contextmanager
def recorder(
    folder: Path, arguments: dict[str, Any] | None = None, **flags: Any
) -> Iterator[Recorder]:
    recorder = make(folder, iterations=["3-4"], **({"memory_snapshot": True} | flags))
    memory = RankMemory(recorder._plan, SimpleNamespace(**(arguments or {})), [], None)
    recorder.exporter.join(memory)
    followers.memory = memory
    try:
        yield recorder
    finally:
        followers.memory = None
        end(recorder)
        memory.close()


def snapshots(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.pickle"))


def test_the_history_is_on_in_the_window_alone_and_the_snapshot_lies_beside_the_trace(
    allocator: Allocator, tmp_path: Path, said: list[str]
) -> None:
    with recorder(tmp_path, memory_snapshot_entries=50) as following:
        kept = {}
        for iteration in range(1, 7):
            train(following, range(iteration, iteration + 1))
            kept[iteration] = allocator.kept
    assert kept == {1: False, 2: False, 3: True, 4: True, 5: False, 6: False}
    assert allocator.calls == [
        {"enabled": "all", "context": "all", "stacks": "python", "max_entries": 50},
        {"enabled": None},
    ]
    (path,) = snapshots(tmp_path)
    assert path == tmp_path / "iter-0000003-0000004/artifacts/rank-0.memory_snapshot.pickle"
    assert pickle.loads(path.read_bytes()) == allocator.contents
    owners = path.with_name("rank-0.memory_owners.json")
    assert json.loads(owners.read_text()) == {
        "schema": 1,
        "ranges": [],
        "weight_bytes": [],
        "blas_workspace_bytes": [8_519_680, 33_554_432],
    }
    assert not list(tmp_path.rglob("*.tmp"))
    ours = [line for line in said if "histor" in line]
    assert ours[0] == (
        "rank 0 keeps the allocator's history of iterations 3-4 (50 entries, python stacks)"
    )
    assert ours[1].startswith(f"rank 0 wrote {path}: ")
    assert "1 entry of history" in ours[1]


@pytest.mark.parametrize(
    ("stacks", "context", "given"),
    [("python", "all", "python"), ("all", "all", "all"), ("none", None, "python")],
)
def test_stacks_are_those_that_are_asked_for(
    stacks: str, context: str | None, given: str, allocator: Allocator, tmp_path: Path
) -> None:
    with recorder(tmp_path, memory_snapshot_stacks=stacks) as following:
        train(following, range(1, 7))
    assert (allocator.calls[0]["context"], allocator.calls[0]["stacks"]) == (context, given)


def test_a_timeline_is_a_snapshot_with_the_names_of_phases(
    allocator: Allocator, tmp_path: Path
) -> None:
    with recorder(tmp_path, memory_snapshot=False, memory_timeline=True) as following:
        assert following._plan.config.wanted_spans == {"phases"}
        train(following, range(1, 7))
    assert len(snapshots(tmp_path)) == 1


def test_a_window_without_the_flag_asks_the_allocator_nothing(
    allocator: Allocator, tmp_path: Path
) -> None:
    with recorder(tmp_path, memory_snapshot=False) as following:
        train(following, range(1, 7))
    assert allocator.calls == []
    assert snapshots(tmp_path) == []


def test_a_snapshot_that_is_there_stays(
    allocator: Allocator, tmp_path: Path, warned: list[str]
) -> None:
    path = tmp_path / "iter-0000003-0000004/artifacts/rank-0.memory_snapshot.pickle"
    path.parent.mkdir(parents=True)
    path.write_text("an earlier one")
    with recorder(tmp_path) as following:
        train(following, range(1, 7))
    assert path.read_text() == "an earlier one"
    assert warned == [
        f"rank 0 could not write {path}: a file of that name is there, and stays as it is"
    ]


def test_a_history_of_the_users_stays_on_and_is_shared(
    allocator: Allocator, tmp_path: Path, warned: list[str]
) -> None:
    allocator.kept = True
    with recorder(tmp_path) as following:
        train(following, range(1, 7))
    assert allocator.calls == []
    assert allocator.kept
    assert len(snapshots(tmp_path)) == 1
    assert warned == [
        "this process keeps the allocator's history already "
        "(torch.cuda.memory._record_memory_history), so the memory snapshot of iterations 3-4 of "
        "rank 0 is taken from that history, which stays on: "
        "--torch-profile-memory-snapshot-entries and --torch-profile-memory-snapshot-stacks do "
        "nothing"
    ]


def test_a_history_of_megatrons_is_called_by_its_flag(
    allocator: Allocator, tmp_path: Path, warned: list[str]
) -> None:
    allocator.kept = True
    with recorder(tmp_path, {"record_memory_history": True}) as following:
        train(following, range(1, 7))
    (line,) = warned
    assert line.startswith("Megatron's --record-memory-history keeps the allocator's history, so ")
    assert allocator.kept


@pytest.mark.parametrize("enabled", ["all", None])
def test_a_history_that_user_code_switches_inside_the_window_is_left_as_it_is(
    enabled: str | None, allocator: Allocator, tmp_path: Path, warned: list[str]
) -> None:
    before = torch.cuda.memory._record_memory_history
    with recorder(tmp_path) as following:
        train(following, range(1, 4))
        torch.cuda.memory._record_memory_history(enabled=enabled)
        train(following, range(4, 7))
    assert allocator.kept is (enabled is not None)
    assert allocator.calls[-1] == {"enabled": enabled}
    assert torch.cuda.memory._record_memory_history == before
    assert warned == [
        "user's code has switched it on or off inside the window: it stays as user's code has "
        "left it, and the memory snapshot of iterations 3-4 holds what there is of it"
    ]


def test_a_failure_of_the_allocator_costs_the_snapshot_and_not_the_trace(
    allocator: Allocator, tmp_path: Path, warned: list[str]
) -> None:
    allocator.fails = RuntimeError("cudaMallocAsync does not yet support recordHistory")
    with recorder(tmp_path) as following:
        train(following, range(1, 7))
    assert snapshots(tmp_path) == []
    assert len(list(tmp_path.rglob("*.pt.trace.json.gz"))) == 1
    assert warned == [
        "rank 0 writes no more memory snapshots: RuntimeError: cudaMallocAsync does not yet "
        "support recordHistory"
    ]


def test_a_history_that_cannot_be_read_is_switched_off_all_the_same(
    allocator: Allocator, tmp_path: Path, warned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise MemoryError

    monkeypatch.setattr(torch.cuda.memory, "_snapshot", fails)
    with recorder(tmp_path) as following:
        train(following, range(1, 7))
    assert not allocator.kept
    assert warned == ["rank 0 writes no more memory snapshots: MemoryError: "]


def test_a_full_disk_is_one_line_and_leaves_no_piece(
    allocator: Allocator, tmp_path: Path, warned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pickle, "dump", fails)
    with recorder(tmp_path) as following:
        train(following, range(1, 7))
    path = tmp_path / "iter-0000003-0000004/artifacts/rank-0.memory_snapshot.pickle"
    assert warned == [f"rank 0 could not write {path}: No space left on device"]
    assert not list(tmp_path.rglob("*.tmp"))
    assert len(list(tmp_path.rglob("*.pt.trace.json.gz"))) == 1


def test_a_window_that_a_signal_cuts_short_has_its_snapshot(
    allocator: Allocator, tmp_path: Path
) -> None:
    passed_on: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: passed_on.append(number))
    with recorder(tmp_path) as following:
        train(following, range(1, 4))
        os.kill(os.getpid(), signal.SIGTERM)
    assert passed_on == [signal.SIGTERM]
    assert not allocator.kept
    assert len(snapshots(tmp_path)) == 1


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({}, "it trains without a GPU"),
        (
            {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
            "PYTORCH_NO_CUDA_MEMORY_CACHING is set, so torch has no allocator that keeps a record",
        ),
    ],
)
def test_a_rank_without_such_an_allocator_says_so_once_and_trains(
    environment: dict[str, str],
    why: str,
    tmp_path: Path,
    warned: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(environment))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert history.unavailable() == why
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(rank_memory, "unavailable", lambda: why)
    with recorder(tmp_path, repeat=2, on_oom=True) as following:
        train(following, range(1, 9))
    assert warned == [
        f"--torch-profile-on-oom does nothing on rank 0: {why}",
        f"--torch-profile-memory-snapshot does nothing on rank 0: {why}",
    ]
    assert snapshots(tmp_path) == []
    assert len(list(tmp_path.rglob("*.pt.trace.json.gz"))) == 1
