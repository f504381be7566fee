# SPDX-License-Identifier: Apache-2.0
"""Lightning's own trainer, which NeMo 2 trains in, on a CPU, with docs/other-loops.md's callback.

    torchrun --nproc-per-node 2 scripts/loops/lightning_loop.py

Two batches are a step, on two ranks under DDP.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import page_examples
import torch
from attached_loop import Layer
from lightning.pytorch import LightningModule, Trainer

STEPS, BATCHES = 4, 2


class Model(LightningModule):
    """Learns to give nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(Layer(), Layer())
        self.loss = 0.0

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        loss: torch.Tensor = self.layers(batch).square().mean()
        self.loss = loss.item()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        # As Megatron prints them, in all digits.
        norm = torch.nn.utils.get_total_norm([one.grad for one in self.parameters()])
        if self.global_rank == 0:
            said = f"loss: {self.loss.hex()} | grad norm: {norm.item().hex()} |"
            print(f"iteration {self.global_step + 1}/{STEPS} | {said}", flush=True)


def main() -> None:
    torch.manual_seed(0)
    model, data = Model(), torch.randn(2 * STEPS * BATCHES * 8, 16)
    callback: Any = page_examples.imported("NeMo", "profile_nemo").TorchProfile()
    trainer = Trainer(
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy="ddp",
        max_steps=STEPS,
        accumulate_grad_batches=BATCHES,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=8))


if __name__ == "__main__":
    main()
