# SPDX-License-Identifier: Apache-2.0
"""Components of known cost, and components that go wrong, for tests."""

from __future__ import annotations

import torch

elapsed = 0
"""On a clock that only `sleep` moves, in ns."""


def sleep(milliseconds: float) -> None:
    global elapsed
    elapsed += int(1e6 * milliseconds)


def products(x: torch.Tensor, times: int = 1) -> torch.Tensor:
    for _ in range(times):
        x = x @ x
    return x


class Stepper:
    """What counts its steps."""

    def __init__(self, by: int = 1) -> None:
        self.by, self.count = by, 0

    def step(self) -> None:
        self.count += self.by


class Silent:
    """Neither steps nor can be called."""


class Growing:
    """Gives more in each step."""

    def __init__(self) -> None:
        self.length = 1

    def __call__(self) -> torch.Tensor:
        self.length += 1
        return torch.zeros(self.length)


def failing(x: torch.Tensor) -> torch.Tensor:
    raise ValueError("head size 3 is odd")


def wide(x: torch.Tensor) -> torch.Tensor:
    return x.float()


def wide_product(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide @ wide).to(x.dtype)


def chatty(x: torch.Tensor) -> torch.Tensor:
    print("hello from a component")
    return x


def broken_graph(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    torch._dynamo.graph_break()
    return y * 2


class Recounting:
    """Reads a number that changes with each step."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x * float(self.count)


nothing_to_call = 3
