# SPDX-License-Identifier: Apache-2.0
"""Models of a loop with several, and what a trace has of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from attached_training import read

from megatron import torch_profile


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())


class Engine:
    """What trains one model: two micro-batches, and its optimizer."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.losses: list[str] = []

    def train(self) -> None:
        for _ in range(2):
            loss = self.model(torch.ones(2, 4)).square().mean()
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.item().hex())


def spans(trace: Path) -> list[str]:
    """Of phases and steps, in their order."""
    events = [
        event
        for event in read(trace)["traceEvents"]
        if event.get("cat") == "user_annotation" and "Optimizer." not in event["name"]
    ]
    events.sort(key=lambda event: (float(event["ts"]), -float(event["dur"])))
    return [event["name"] for event in events]


def train(loop: Callable[[], None], iterations: int = 3) -> None:
    for _ in range(iterations):
        with torch_profile.step():
            loop()
