# SPDX-License-Identifier: Apache-2.0
"""What torch's flight recorder tells of calls that are pending, and whose stack comes first."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest
import torch

from megatron.torch_profile.monitor.hangs import flight_entries, watchdog
from megatron.torch_profile.monitor.hangs.stacks import thread_stacks
from megatron.torch_profile.monitor.hangs.watchdog import pending_seconds

S = 1_000_000_000
NOW = 1_000 * S


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have torch's flight recorder hold calls; a torch before 2.4 takes no arguments."""
    monkeypatch.setattr(watchdog.time, "time_ns", lambda: NOW)

    def record(entries: list[dict[str, Any]], *, old: bool = False) -> None:
        def dump(**options: bool) -> bytes:
            if old and options:
                raise TypeError("takes no arguments")
            return pickle.dumps({"entries": entries})

        monkeypatch.setattr(torch._C._distributed_c10d, "_dump_nccl_trace", dump, raising=False)

    return record


def called(seconds_ago: int, state: str) -> dict[str, Any]:
    return {"time_created_ns": NOW - seconds_ago * S, "state": state}


@pytest.mark.parametrize("old", [False, True])
def test_the_oldest_that_is_not_complete_counts(recorded: Any, old: bool) -> None:
    entries = [called(90, "completed"), called(30, "started"), called(10, "scheduled")]
    recorded(entries, old=old)
    assert pending_seconds() == 30.0


def test_where_all_are_complete_nothing_is_pending(recorded: Any) -> None:
    recorded([called(90, "completed")])
    assert pending_seconds() == 0.0


def test_the_stack_of_the_thread_that_trains_comes_first() -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait, name="that trains")
    thread.start()
    try:
        assert thread.ident is not None
        first, *others = thread_stacks(thread.ident)
    finally:
        over.set()
        thread.join()
    assert (first.name, first.trains) == ("that trains", True)
    assert {one.trains for one in others} == {False}


def written(monkeypatch: pytest.MonkeyPatch, *calls: dict[str, Any]) -> list[dict[str, Any]]:
    """The calls of a record, in a group that counts three collectives as complete."""
    record = {"entries": list(calls), "pg_status": {"0": {"last_completed_collective": 3}}}
    monkeypatch.setattr(flight_entries, "_dump", lambda device: pickle.dumps(record))
    text = flight_entries.flight_entries()
    assert text is not None
    entries: list[dict[str, Any]] = pickle.loads(text)["entries"]
    return entries


def gloo(number: int, **others: Any) -> dict[str, Any]:
    return {
        "process_group": ("0", "default_pg"), "profiling_name": "gloo:all_reduce",
        "collective_seq_id": number, "state": "scheduled", "is_p2p": False, **others,
    }  # fmt: skip


def states(monkeypatch: pytest.MonkeyPatch, *calls: dict[str, Any]) -> list[str]:
    return [one["state"] for one in written(monkeypatch, *calls)]


def test_gloos_calls_are_complete_up_to_its_count_and_one_more_where_the_rank_went_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done, open_ = "completed", "scheduled"
    assert states(monkeypatch, gloo(2), gloo(3)) == [done, done]
    assert states(monkeypatch, gloo(3), gloo(4)) == [done, open_]
    assert states(monkeypatch, gloo(3), gloo(4), gloo(5)) == [done, done, open_]


def test_gloos_count_is_of_the_group_with_this_number_in_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The name of a group is the same on all ranks, its number is not."""
    other = {"process_group": ("0", "other"), "pg_id": 4}
    assert states(monkeypatch, gloo(2, **other), gloo(9)) == ["scheduled"] * 2
    mine = {"process_group": ("6", "undefined"), "pg_id": 0}
    assert states(monkeypatch, gloo(2, **mine), gloo(9)) == ["completed", "scheduled"]


def in_a_batch(number: int, name: str, state: str = "scheduled", **others: Any) -> dict[str, Any]:
    sizes: list[list[int]] = [] if name == "coalesced" else [[8]]
    return {
        "record_id": number, "process_group": ("7", "PIPELINE_MODEL_PARALLEL_GROUP"), "pg_id": 2,
        "profiling_name": f"nccl:{name}", "collective_seq_id": 0, "p2p_seq_id": 5, "state": state,
        "input_sizes": sizes, "output_sizes": sizes, "is_p2p": bool(sizes), **others,
    }  # fmt: skip


def batch(first: int, state: str, **others: Any) -> list[dict[str, Any]]:
    """What batch_isend_irecv leaves: the state of its two transfers never changes."""
    return [
        in_a_batch(first, "send 0->1", **others),
        in_a_batch(first + 1, "recv 0<-1", **others),
        in_a_batch(first + 2, "coalesced", state, **others),
    ]


@pytest.mark.parametrize("state", ["completed", "scheduled"])
def test_transfers_are_as_far_as_their_batch(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert states(monkeypatch, *batch(0, state)) == [state] * 3


def test_a_transfer_of_a_batch_that_is_complete_is_not_pending_for_long(recorded: Any) -> None:
    old, new = {"time_created_ns": NOW - 900 * S}, {"time_created_ns": NOW - 20 * S}
    recorded([*batch(0, "completed", **old), *batch(3, "scheduled", p2p_seq_id=6, **new)])
    assert pending_seconds() == 20.0


def test_of_messages_and_of_nccls_calls_gloos_count_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nccl = gloo(1, profiling_name="nccl:all_reduce")
    message = gloo(1, profiling_name="gloo:send", is_p2p=True)
    assert states(monkeypatch, nccl, message, gloo(9)) == ["scheduled"] * 3


def test_of_calls_that_are_complete_the_last_are_written_and_fewer_with_their_stacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flight_entries, "_KEPT_COMPLETED", 3)
    monkeypatch.setattr(flight_entries, "_WITH_STACK", 1)
    calls = [{"id": n, "state": "completed", "frames": [n]} for n in range(5)]
    pending = {"id": 5, "state": "started", "frames": [5]}
    assert written(monkeypatch, pending, *calls) == [
        pending, *({"id": n, "state": "completed"} for n in (2, 3)), calls[4],
    ]  # fmt: skip
