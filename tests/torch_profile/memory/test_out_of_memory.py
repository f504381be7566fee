# SPDX-License-Identifier: Apache-2.0
"""What is said and written when a GPU has no memory for a request; nothing of it ends training."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from allocator_stand_in import GIB, Allocator, segment
from recordings import make
from recordings import signals as signals

from megatron import torch_trace
from megatron.torch_profile.memory import out_of_memory, rank_memory
from megatron.torch_profile.memory.rank_memory import RankMemory
from megatron.torch_profile.memory.standing import standing
from megatron.torch_profile.plan.training_loop import Models
from megatron.torch_trace.allocator.purpose.owners import Owner

_BASE = 1 << 40
_OWNED = [
    Owner(0, _BASE, 4 * GIB, "parameters", "parameter buffer of DDP"),
    Owner(0, _BASE + 4 * GIB, 8 * GIB, "optimizer_state", "optimizer state"),
]
ARGUMENTS = {
    "curr_iteration": 6,
    "micro_batch_size": 4,
    "recompute_granularity": None,
    "sequence_parallel": False,
    "tensor_model_parallel_size": 2,
    "pipeline_model_parallel_size": 1,
    "use_distributed_optimizer": False,
    "data_parallel_size": 4,
}


class Block(torch.nn.Module):
    """A layer whose forward runs out of memory."""

    def __init__(self, request: Any) -> None:
        super().__init__()
        self.request = request

    def forward(self) -> None:
        self.request()


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    used = "active_allocated"
    allocator = Allocator(
        {
            "segments": [
                segment(
                    (4 * GIB, used, ()),
                    (8 * GIB, used, ()),
                    (20 * GIB, used, ()),
                    (3 * GIB, "inactive", ()),
                    (GIB, used, ()),
                    address=_BASE,
                )
            ],
            "device_traces": [[]],
        }
    )
    allocator.install(monkeypatch)
    monkeypatch.setattr(rank_memory, "unavailable", lambda: None)
    monkeypatch.setattr(rank_memory, "owned_ranges", lambda *_: list(_OWNED))
    monkeypatch.setattr(out_of_memory, "_attached", False)
    return allocator


@pytest.fixture
def watched(allocator: Allocator, tmp_path: Path) -> Iterator[tuple[Any, torch.nn.Module]]:
    """The observer that torch calls, and a model that can ask for 2 GiB."""
    model = torch.nn.ModuleDict({"module": torch.nn.ModuleDict({"mlp": Block(lambda: None)})})
    plan = make(tmp_path, on_oom=True)._plan
    memory = RankMemory(plan, SimpleNamespace(**ARGUMENTS), [model], None)
    (observe,) = allocator.observers
    yield observe, model
    memory.close()


def forward_step(model: Any, current_microbatch: int) -> None:
    """As Megatron's, by its name and its argument; the user's is called alike."""

    def forward_step() -> None:
        model["module"]["mlp"]()

    forward_step()


def fails(observe: Any) -> None:
    observe(0, 2 * GIB, 40 * GIB, GIB)


def test_one_paragraph_says_what_was_asked_who_holds_memory_and_what_to_try(
    watched: Any, tmp_path: Path, warned: list[str]
) -> None:
    observe, model = watched
    model["module"]["mlp"].request = lambda: fails(observe)
    forward_step(model, 2)
    path = tmp_path / "out-of-memory" / "rank-0.iter-0000007.memory_snapshot.pickle"
    assert warned == [
        "rank 0 asked for 2.15 GB (iteration 7, forward micro-batch 2, mlp: Block), which GPU 0 "
        "lacks\n"
        "1.07 GB of 42.9 GB are free; torch has 38.7 GB of it, tensors use 35.4 GB\n"
        "torch has 3.22 GB that no tensor uses, 3.22 GB of it between blocks in use; the largest "
        "free piece has 3.22 GB\n"
        "largest holders: all other tensors 22.5 GB (64 %), optimizer state 8.59 GB (24 %), "
        "parameters 4.29 GB (12 %)\n"
        "to try: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (the free pieces would do); "
        "--micro-batch-size smaller than 4; --recompute-granularity selective; "
        "--sequence-parallel; --use-distributed-optimizer",
        f"rank 0 wrote {path}: torch-trace memory {path}",
    ]


def test_the_model_itself_is_called_by_its_class(watched: Any, warned: list[str]) -> None:
    observe, model = watched
    model["module"] = Block(lambda: fails(observe))
    model["module"]()
    assert "rank 0 asked for 2.15 GB (iteration 7, Block), which" in warned[0]


def test_of_several_models_a_module_and_a_model_are_called_by_the_name() -> None:
    stood: list[str] = []

    def block() -> Block:
        return Block(lambda: stood.append(standing(models).module))

    blocks = {"actor": block(), "critic": block()}
    models = Models({name: [torch.nn.ModuleDict({"mlp": it})] for name, it in blocks.items()})
    reward = block()
    models.add("reward", [reward])
    for one in (*blocks.values(), reward):
        one()
    assert stood == ["actor.mlp: Block", "critic.mlp: Block", "reward: Block"]


def test_of_a_part_of_the_gpu_what_is_left_of_the_part_is_free(
    watched: Any, warned: list[str]
) -> None:
    """By `torch.cuda.set_per_process_memory_fraction`: CUDA has more."""
    watched[0](0, 2 * GIB, 37 * GIB, 90 * GIB)
    assert "1.07 GB of 39.7 GB are free; torch has 38.7 GB of it" in warned[0]


def test_the_snapshot_has_its_owners_and_the_live_bytes_lie_beside_it(
    watched: Any, tmp_path: Path
) -> None:
    fails(watched[0])
    folder = tmp_path / "out-of-memory"
    assert sorted(path.name for path in folder.iterdir()) == [
        "rank-0.iter-0000007.live_bytes.json",
        "rank-0.iter-0000007.memory_owners.json",
        "rank-0.iter-0000007.memory_snapshot.pickle",
    ]
    (answer,) = torch_trace.memory(folder)
    assert answer.peak_bytes == 33 * GIB
    assert {category.value: size for category, size in answer.categories.items() if size} == {
        "parameters": 4 * GIB,
        "optimizer_state": 8 * GIB,
        "unknown": 21 * GIB,
    }
    facts = json.loads((folder / "rank-0.iter-0000007.live_bytes.json").read_text())
    assert facts["categories"] == {
        "parameters": 4 * GIB,
        "optimizer_state": 8 * GIB,
        "unknown": 21 * GIB,
    }
    assert facts["stack"][0].endswith(" fails")
    assert facts["modules"] == {
        "all other tensors": 21 * GIB,
        "optimizer state": 8 * GIB,
        "parameter buffer of DDP": 4 * GIB,
    }
    assert (facts["requested_bytes"], facts["free_bytes"], facts["outside_bytes"]) == (
        2 * GIB,
        GIB,
        3 * GIB,
    )


def test_where_a_history_is_kept_holders_are_named_by_the_code_that_allocated(
    watched: Any, allocator: Allocator, warned: list[str]
) -> None:
    allocator.contents["segments"][0]["blocks"][2]["frames"] = [
        {"filename": "megatron/core/transformer/mlp.py", "line": 9, "name": "forward"}
    ]
    fails(watched[0])
    assert "largest holders: activations of mlp.py forward 21.5 GB (61 %)" in warned[0]


def test_a_backward_pass_is_known_by_what_the_main_thread_does(
    watched: Any, warned: list[str]
) -> None:
    def backward_step() -> None:
        thread = threading.Thread(target=fails, args=(watched[0],))
        thread.start()
        thread.join()

    backward_step()
    assert warned[0].startswith("rank 0 asked for 2.15 GB (iteration 7, backward), which GPU 0")


def test_three_errors_of_a_run_are_told_and_no_more(
    watched: Any, tmp_path: Path, warned: list[str]
) -> None:
    for _ in range(5):
        fails(watched[0])
    names = sorted(path.name for path in (tmp_path / "out-of-memory").glob("*.pickle"))
    assert names == [
        "rank-0.iter-0000007.2.memory_snapshot.pickle",
        "rank-0.iter-0000007.3.memory_snapshot.pickle",
        "rank-0.iter-0000007.memory_snapshot.pickle",
    ]
    assert len(warned) == 7
    assert warned[-1] == (
        "rank 0 tells of no further out-of-memory errors: 3 errors is the most of a run"
    )


@pytest.mark.parametrize("part", ["take", "live_bytes", "write", "standing"])
def test_an_error_inside_the_observer_is_one_line_and_raises_nothing(
    part: str, watched: Any, warned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails_too(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("again")

    monkeypatch.setattr(out_of_memory, part, fails_too)
    fails(watched[0])
    assert warned[-1] == (
        "rank 0 could not tell all of an out-of-memory error: OutOfMemoryError: again"
    )


def test_owners_that_cannot_be_told_cost_only_their_names(
    watched: Any, tmp_path: Path, warned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails_too(*_: Any) -> None:
        raise RuntimeError("a model of another kind")

    monkeypatch.setattr(rank_memory, "owned_ranges", fails_too)
    fails(watched[0])
    assert "largest holders: all other tensors 35.4 GB (100 %)" in warned[1]
    assert len(list((tmp_path / "out-of-memory").glob("*.pickle"))) == 1


def test_a_full_disk_costs_the_files_and_not_the_paragraph(
    watched: Any, tmp_path: Path, warned: list[str]
) -> None:
    (tmp_path / "out-of-memory").write_text("a file has taken the place of the folder")
    fails(watched[0])
    assert warned[0].startswith("rank 0 asked for 2.15 GB")
    assert (
        warned[1] == "rank 0 could not tell all of an out-of-memory error: a file of that name"
        " is there, and stays as it is"
    )


def test_after_training_torch_calls_an_observer_that_does_nothing(
    allocator: Allocator, tmp_path: Path, warned: list[str]
) -> None:
    plan = make(tmp_path, on_oom=True)._plan
    RankMemory(plan, SimpleNamespace(), [], None).close()
    fails(allocator.observers[0])
    assert warned == []


def test_trainings_of_one_process_share_one_observer(
    allocator: Allocator, tmp_path: Path, warned: list[str]
) -> None:
    for _ in range(2):
        plan = make(tmp_path, on_oom=True)._plan
        memory = RankMemory(plan, SimpleNamespace(), [], None)
        memory.close()
    assert len(allocator.observers) == 1
