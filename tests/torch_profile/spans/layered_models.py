# SPDX-License-Identifier: Apache-2.0
"""Small models whose modules have spans."""

from __future__ import annotations

import torch
from torch.utils.checkpoint import checkpoint


class Layer(torch.nn.Module):
    """x + mlp(norm(x)), as a transformer's layer goes around its blocks."""

    def __init__(self, recompute: bool = False, reentrant: bool = False) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.norm = torch.nn.LayerNorm(4)
        self.mlp = torch.nn.Linear(4, 4)
        self.recompute = recompute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        if self.recompute:
            return x + checkpoint(self.mlp, y, use_reentrant=self.reentrant)
        return x + self.mlp(y)


class Block(torch.nn.Module):
    """Layers in a row, and a part that does nothing, of which a trace need not speak."""

    def __init__(self, **options: bool) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Layer(**options) for _ in range(2)])
        self.identity = torch.nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.identity(x)


class Model(torch.nn.Module):
    def __init__(self, **options: bool) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(3, 4)
        self.decoder = Block(**options)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.embedding(tokens))


def send(*_: object) -> None:
    """Stands for a reduce-scatter: an operator that nothing else here calls."""
    torch.ones(3).cumsum(0)


def step(model: torch.nn.Module) -> None:
    model(torch.tensor([[0, 1, 2]])).square().sum().backward()


class LastStage(torch.nn.Module):
    """As a pipeline stage with a loss: its input is set, not passed, and the loss is its own."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = torch.nn.Linear(4, 4)
        self.decoder.input_tensor = torch.ones(2, 4, requires_grad=True)

    def forward(self) -> torch.Tensor:
        return self.decoder(self.decoder.input_tensor.detach().requires_grad_()).square().sum()


class Tied(torch.nn.Module):
    """An output layer that is given the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(3, 4)
        self.output_layer = Output()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.output_layer(self.embedding(tokens), weight=self.embedding.weight)


class Output(torch.nn.Module):
    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, weight)
