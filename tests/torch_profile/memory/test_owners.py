# SPDX-License-Identifier: Apache-2.0
"""Whose memory it is, as Megatron's own objects tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from megatron.torch_profile.memory import owners
from megatron.torch_profile.plan.training_loop import Models


def test_owners_are_told_by_megatrons_own_objects() -> None:
    """On the CPU, where storages have addresses, too."""

    class Buffer:
        def __init__(self) -> None:
            self.param_data = torch.zeros(64)
            self.grad_data = torch.zeros(64)

    class Wrapper(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = torch.nn.Linear(8, 4)
            buffer = Buffer()
            self.buffers = [buffer]  # type: ignore[assignment]
            self.module.weight.data = buffer.param_data[:32].view(4, 8)

    chunk = Wrapper()
    flat = vars(chunk)["buffers"][0]
    main = torch.nn.Parameter(torch.zeros(16))
    main.grad = torch.ones(16)
    inner = torch.optim.Adam([main])
    inner.step()
    state = inner.state[main]
    optimizer = SimpleNamespace(chained_optimizers=[SimpleNamespace(optimizer=inner)])
    found = {
        one.address: (one.category, one.name)
        for one in owners.owned_ranges([chunk], optimizer, device="cpu")
    }
    expected = {
        flat.param_data: ("parameters", "parameter buffer of DDP"),
        flat.grad_data: ("gradients", "gradient buffer of DDP"),
        chunk.module.bias: ("parameters", "bias"),
        main: ("optimizer_state", "optimizer state"),
        main.grad: ("gradients", "gradients of main parameters"),
        state["exp_avg"]: ("optimizer_state", "optimizer state"),
        state["exp_avg_sq"]: ("optimizer_state", "optimizer state"),
    }
    for tensor, owner in expected.items():
        assert found.pop(tensor.untyped_storage().data_ptr()) == owner
    assert set(found.values()) <= {("optimizer_state", "optimizer state")}


def names(model: object, optimizer: object = None) -> Counter[str]:
    """Of the owners of storages on the CPU."""
    return Counter(one.name for one in owners.owned_ranges(model, optimizer, device="cpu"))


def test_of_several_models_every_owner_has_the_name_of_its_model() -> None:
    models = {name: torch.nn.Linear(8, 4, bias=False) for name in ("actor", "critic")}
    optimizers = [torch.optim.SGD(one.parameters(), momentum=0.9) for one in models.values()]
    for one, optimizer in zip(models.values(), optimizers, strict=True):
        one(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    of_both = torch.optim.SGD([torch.zeros(16)])
    chunks = Models({name: [one] for name, one in models.items()})
    assert names(chunks, [*optimizers, of_both]) == Counter(
        {
            "actor.weight": 1,
            "gradient of actor.weight": 1,
            "optimizer state of actor": 1,
            "critic.weight": 1,
            "gradient of critic.weight": 1,
            "optimizer state of critic": 1,
            "optimizer state": 1,
        }
    )


def test_chunks_of_a_model_hold_parameters_by_the_names_that_modules_have_in_a_trace() -> None:
    first, second = (torch.nn.Linear(8, 4, bias=False) for _ in range(2))
    assert names([first, second]) == Counter(["chunk0.weight", "chunk1.weight"])
    several = Models({"actor": [first, second], "critic": [torch.nn.Linear(8, 4, bias=False)]})
    assert sorted(names(several)) == [
        "actor.chunk0.weight",
        "actor.chunk1.weight",
        "critic.weight",
    ]


def test_buffers_of_ddp_have_the_name_of_their_model() -> None:
    chunk = torch.nn.Linear(8, 4, bias=False)
    flat = SimpleNamespace(param_data=torch.zeros(64), grad_data=torch.zeros(64))
    vars(chunk)["buffers"] = [flat]
    chunk.weight.data = flat.param_data[:32].view(4, 8)
    assert sorted(name for name in names(Models({"actor": [chunk]}))) == [
        "gradient buffer of DDP of actor",
        "parameter buffer of DDP of actor",
    ]


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of this process alone."""
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_shards_of_torchs_fsdp_have_owners_and_weights_their_whole_size() -> None:
    mesh = init_device_mesh("cpu", (1,))
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Linear(64, 32))
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(4, 32)).sum().backward()
    optimizer.step()
    found = Counter[str]()
    for one in owners.owned_ranges([model], optimizer, device="cpu"):
        found[one.category] += one.bytes
    weights = 4 * sum(one.numel() for one in model.parameters())
    assert found["parameters"] == weights
    assert found["gradients"] == weights
    assert found["optimizer_state"] == pytest.approx(2 * weights, rel=0.01)
    assert owners.weight_bytes([model]) == (4 * 32 * 64,)


def test_buffers_of_megatrons_fsdp_have_owners() -> None:
    class Group:
        model_weight_buffer = SimpleNamespace(data=torch.zeros(8))
        main_weight_buffer = SimpleNamespace(data=torch.zeros(16))
        main_grad_buffer = SimpleNamespace(data=torch.zeros(32))
        hsdp_comm_gbuf = SimpleNamespace(data=torch.zeros(64))

    chunk = torch.nn.Module()
    vars(chunk)["param_and_grad_buffer"] = SimpleNamespace(parameter_groups=[Group()])
    assert [
        (one.bytes, one.category)
        for one in sorted(
            owners.owned_ranges([chunk], None, device="cpu"), key=lambda one: one.bytes
        )
    ] == [
        (32, "parameters"),
        (64, "optimizer_state"),
        (128, "gradients"),
        (256, "communication_buffers"),
    ]
