# SPDX-License-Identifier: Apache-2.0
"""A loop of PyTorch alone under `attach()` and `step()`, for versions of torch without a Megatron.

    python -m torch.distributed.run --nproc-per-node 2 scripts/attached_loop.py --torch-profile ...

Four iterations of two micro-batches; gradients are averaged over the ranks. Losses are printed as
Megatron prints them, in all of their digits.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from megatron import torch_profile

ITERATIONS, MICRO_BATCHES = 4, 2


class Layer(torch.nn.Module):
    """Two products and what is between them."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = torch.nn.Linear(16, 64), torch.nn.Linear(64, 16)
        self.activation = torch.nn.GELU()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = hidden + self.narrow(self.activation(self.wide(hidden)))
        return out


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(Layer(), Layer())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(dist.get_rank())
    with torch_profile.attach(model, optimizer=optimizer, last_iteration=ITERATIONS):
        for iteration in range(1, ITERATIONS + 1):
            with torch_profile.step(iteration):
                optimizer.zero_grad()
                for _ in range(MICRO_BATCHES):
                    loss = model(torch.randn(8, 16, generator=data)).square().mean()
                    loss.backward()
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad)
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            if dist.get_rank() == 0:
                # It ends as Megatron's do: what another rank says may stand right behind it.
                said = f"loss: {loss.item().hex()} | grad norm: {norm.item().hex()} |"
                print(f"iteration {iteration}/{ITERATIONS} | {said}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
