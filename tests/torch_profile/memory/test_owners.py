# SPDX-License-Identifier: Apache-2.0
"""Whose memory it is, as Megatron's own objects tell."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from megatron.torch_profile.memory import owners


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
        chunk.module.bias: ("parameters", "module.bias"),
        main: ("optimizer_state", "optimizer state"),
        main.grad: ("gradients", "gradients of main parameters"),
        state["exp_avg"]: ("optimizer_state", "optimizer state"),
        state["exp_avg_sq"]: ("optimizer_state", "optimizer state"),
    }
    for tensor, owner in expected.items():
        assert found.pop(tensor.untyped_storage().data_ptr()) == owner
    assert set(found.values()) <= {("optimizer_state", "optimizer state")}
