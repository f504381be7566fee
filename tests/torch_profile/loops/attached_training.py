# SPDX-License-Identifier: Apache-2.0
"""A training of ten lines that attaches itself, and what it has written."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import torch

from megatron import torch_profile
from megatron.torch_profile.config import TorchProfileConfig
from megatron.torch_profile.record.recorder import Recorder

recorders: list[Recorder] = []
"""Of the test that runs."""


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())


class Training:
    """One model: two micro-batches an iteration, and its optimizer."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.losses: list[str] = []

    def step(self) -> None:
        for _ in range(2):
            loss = self.model(torch.ones(2, 4)).square().mean()
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.item().hex())

    def run(self, iterations: int, first: int = 1) -> None:
        for iteration in range(first, first + iterations):
            with torch_profile.step(iteration):
                self.step()


def config(folder: Path, **more: Any) -> TorchProfileConfig:
    return TorchProfileConfig(enabled=True, dir=str(folder), **more)


def traces(folder: Path) -> list[Path]:
    for recorder in recorders:
        recorder.exporter.wait()
    return sorted(folder.rglob("*.pt.trace.json.gz"))


def read(trace: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(gzip.decompress(trace.read_bytes()))
    return loaded


def run_record(folder: Path) -> dict[str, Any]:
    (path,) = folder.rglob("run.json")
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded
