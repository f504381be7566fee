# SPDX-License-Identifier: Apache-2.0
"""What the objects of a loop tell of its run: mesh, configurations, arguments."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from attached_training import Training, config, read, run_record, traces

from megatron import torch_profile


def test_coordinates_come_from_a_mesh_and_replicas_and_shards_are_one_dimension(
    tmp_path: Path,
) -> None:
    mesh = SimpleNamespace(
        mesh_dim_names=("pp", "dp_replicate", "dp_shard", "tp", "loss"),
        mesh=torch.zeros(2, 2, 4, 2, 1),
        get_coordinate=lambda: [1, 1, 2, 0, 0],
    )
    training = Training()
    with torch_profile.attach(training.model, config=config(tmp_path), mesh=mesh):
        training.run(3)
    record = run_record(tmp_path)
    assert record["ranks"][0]["coordinates"] == {"pp": 1, "dp": 6, "tp": 0}
    assert record["layout"] == {"pp": 2, "dp": 8, "tp": 2}


@dataclass
class DistributedDataParallelConfig:
    """Stands in for megatron-core's, which is known by its module."""

    overlap_grad_reduce: bool = True
    overlap_param_gather: bool = False
    cuda_graph_impl: str = "local"


DistributedDataParallelConfig.__module__ = "megatron.core.distributed"


@dataclass
class Nested:
    lr: float = 0.1


@dataclass
class Container:
    optimizer: Nested = field(default_factory=Nested)
    rank: int = 0


def test_what_megatron_core_has_switched_on_is_in_the_trace(tmp_path: Path) -> None:
    training = Training()
    training.model.ddp_config = DistributedDataParallelConfig()
    with torch_profile.attach(
        training.model, config=config(tmp_path), arguments=Container(), loop="megatron-bridge"
    ):
        training.run(3)
    (trace,) = traces(tmp_path)
    own = read(trace)["torch_profile"]
    assert own["flags"] == ["--overlap-grad-reduce", "--cuda-graph-impl=local"]
    assert run_record(tmp_path)["arguments"] == {"optimizer": "{'lr': 0.1}", "rank": 0}


def test_megatrons_own_arguments_count_where_the_loop_says_that_they_are(tmp_path: Path) -> None:
    training = Training()
    args = SimpleNamespace(global_batch_size=8, seq_length=16, lr=0.1)
    with torch_profile.attach(
        training.model, config=config(tmp_path), arguments=args, loop="megatron"
    ):
        training.run(3)
    (trace,) = traces(tmp_path)
    own = read(trace)["torch_profile"]
    assert (own["loop"], own["tokens_per_iteration"]) == ("megatron", 128)


def test_what_an_iteration_holds_is_unknown_while_batches_grow(tmp_path: Path) -> None:
    training = Training()
    args = SimpleNamespace(global_batch_size=2, seq_length=16, step_batch_size_schedule="0:2 99:4")
    with torch_profile.attach(
        training.model, config=config(tmp_path), arguments=args, loop="megatron"
    ):
        training.run(3)
    (trace,) = traces(tmp_path)
    assert "tokens_per_iteration" not in read(trace)["torch_profile"]


@pytest.mark.parametrize("kind", [float, np.int64, torch.tensor], ids=["float", "numpy", "tensor"])
def test_numbers_that_attach_is_given_may_be_of_any_kind(kind: Any, tmp_path: Path) -> None:
    numbers = {
        "first_iteration": kind(1),
        "last_iteration": kind(4),
        "flops_per_iteration": kind(9_000_000),
        "tokens_per_iteration": kind(64),
    }
    training = Training()
    with torch_profile.attach(training.model, config=config(tmp_path), **numbers):
        training.run(4)
    (trace,) = traces(tmp_path)
    own = read(trace)["torch_profile"]
    assert (own["model_flops_per_iteration"], own["tokens_per_iteration"]) == (9_000_000, 64)
    record = run_record(tmp_path)
    assert (record["model_flops_per_iteration"], record["plan"]["last_iteration"]) == (
        9_000_000,
        4,
    )
