# SPDX-License-Identifier: Apache-2.0
"""Trainings that several tests read: each is launched once a session, when the first test asks.

A launch of two processes costs 5 s of a core with a warm Python (tests/warm_python.py) and 20 s
without, nearly all for imports; its iterations cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from launches import MODEL, Launch, Run
from training_scripts import (
    ALLOCATOR_OF_RANK_0,
    BROKEN_WANDB,
    HANGING_RANK_1,
    SLOW_RANK_1,
    SLOWER_RANK_1,
)

# Two data-parallel ranks with four micro-batches each. Of a flag that is given twice the later one
# counts.
TRAIN = f"{MODEL} --lr-decay-iters 8 --global-batch-size 8 --train-iters 8"
WANDB = "--log-timers-to-wandb --wandb-project project --wandb-exp-name name --wandb-save-dir"

FORK_BLOCK = (
    "--torch-profile --torch-profile-wait 0 --torch-profile-ranks 0 1 --torch-profile-warmup 1 "
    "--torch-profile-active 1 --torch-profile-repeat 1 --torch-profile-skip-first 1 "
    "--torch-profile-with-flops --torch-profile-profile-memory --torch-profile-with-stack "
    "--torch-profile-with-modules"
)


@dataclass
class Training:
    """A launch, and where all that it wrote lies. Where it failed, so does each test that asks."""

    ended: Run
    written: Path

    @property
    def run(self) -> Run:
        assert self.ended.status == 0, self.ended.output
        return self.ended

    @property
    def folder(self) -> Path:
        assert self.ended.status == 0, self.ended.output
        return self.written


class Trainings:
    """What one Megatron wheel is launched for."""

    def __init__(self, version: str, launch: Launch, folder: Path) -> None:
        self._version, self._launch, self._folder = version, launch, folder

    def _train(
        self, name: str, flags: str, *, processes: int = 2, script: str = "", **how: Any
    ) -> Training:
        """Launch with flags in which {0} stands for a new folder."""
        folder = self._folder / name
        folder.mkdir()
        file = folder / "train.py"
        if script:
            file.write_text(script)
        run = self._launch(
            flags.format(folder),
            version=self._version,
            processes=processes,
            script=str(file) if script else "pretrain_gpt.py",
            **how,
        )
        return Training(run, folder)

    @cached_property
    def unprofiled(self) -> Training:
        """Without any flag of ours; leaves a checkpoint of iteration 5."""
        return self._train(
            "unprofiled",
            f"{TRAIN} --save {{0}}/checkpoints --save-interval 5 --ckpt-format torch "
            "--tensorboard-dir {0}/tensorboard",
        )

    @cached_property
    def forks(self) -> Training:
        """The fork's block of flags: both ranks, one window, everything recorded."""
        return self._train("forks", f"{TRAIN} {FORK_BLOCK} --tensorboard-dir {{0}}")

    @cached_property
    def resumed(self) -> Training:
        """From iteration 5 on with every sink; rank 1 is late in iterations 6 and 12.

        Log intervals end in iterations 6, 11 and 22; iteration 23 is never logged.
        """
        checkpoints = self.unprofiled.folder / "checkpoints"
        (checkpoints / "latest_checkpointed_iteration.txt").write_text("5")
        return self._train(
            "resumed",
            f"{TRAIN} --load {checkpoints} --ckpt-format torch --override-opt_param-scheduler "
            "--train-iters 23 --log-interval 11 "
            f"{WANDB} {{0}}/wandb --log-timers-to-tensorboard --tensorboard-dir {{0}}/events "
            "--timing-log-level 2 --logging-level 20 --log-gpu-stats-interval 1 --torch-profile "
            "--torch-profile-iterations 17-18 --torch-profile-ranks 0 "
            "--torch-profile-dir {0}/traces --torch-profile-summary always "
            "--torch-profile-wandb-artifacts",
            script=SLOW_RANK_1,
        )

    @cached_property
    def parallel(self) -> Training:
        """Two pipeline stages of two tensor-parallel ranks, and a layer that predicts further."""
        return self._train(
            "parallel",
            f"{MODEL} --global-batch-size 4 --train-iters 5 --tensor-model-parallel-size 2 "
            "--pipeline-model-parallel-size 2 --mtp-num-layers 1 --position-embedding-type rope "
            "--torch-profile --torch-profile-ranks tp=0,dp=0 --torch-profile-repeat 2 "
            "--torch-profile-skip-first 0 --torch-profile-dir {0} --torch-profile-spans phases",
            processes=4,
        )

    @cached_property
    def ended_early(self) -> Training:
        """`--torch-profile` alone, under a W&B that fails; Megatron calls sys.exit in `train`."""
        return self._train(
            "ended-early",
            f"{TRAIN} --train-iters 20 --exit-interval 3 --torch-profile --tensorboard-dir {{0}} "
            f"{WANDB} {{0}}/wandb",
            script=BROKEN_WANDB,
        )

    @cached_property
    def hanging(self) -> Training:
        """Rank 1 hangs in iteration 3 until both ranks have told so, and goes on."""
        return self._train(
            "hanging",
            f"{TRAIN} --torch-profile --torch-profile-on-hang 600 --torch-profile-monitor "
            "--torch-profile-dir {0}",
            script=HANGING_RANK_1,
        )

    @cached_property
    def slow(self) -> Training:
        """Rank 1 is late in the forward of iterations 31 to 33; a window is in iteration 5."""
        return self._train(
            "slow",
            f"{TRAIN} --train-iters 70 --torch-profile --torch-profile-monitor "
            "--torch-profile-monitor-interval 10 --torch-profile-iterations 5 "
            "--torch-profile-trigger slow-iteration --torch-profile-trigger-ranks slowest "
            "--torch-profile-trigger-windows 1 --torch-profile-trigger-factor 6 "
            "--torch-profile-summary always "
            f"{WANDB} {{0}}/wandb --tensorboard-dir {{0}}/events --torch-profile-dir {{0}}/traces",
            script=SLOWER_RANK_1,
        )

    @cached_property
    def remembering(self) -> Training:
        """Rank 0 has something like an allocator, which fails in iteration 7; rank 1 has none."""
        return self._train(
            "remembering",
            f"{TRAIN} --torch-profile --torch-profile-ranks all --torch-profile-memory-timeline "
            "--torch-profile-on-oom --torch-profile-iterations 4-5 --torch-profile-dir {0}",
            script=ALLOCATOR_OF_RANK_0,
        )

    @cached_property
    def of_a_gpu(self) -> Training:
        """A launch script of a GPU, without one; numbers go to W&B alone, nothing is profiled."""
        return self._train(
            "of-a-gpu",
            f"{MODEL} --global-batch-size 2 --train-iters 2 --tensor-model-parallel-size 2 "
            "--sequence-parallel --num-experts 4 --disable-bias-linear --apply-layernorm-1p "
            "--moe-token-dispatcher-type alltoall --moe-grouped-gemm --cuda-graph-impl local "
            f"--log-memory-to-tensorboard {WANDB} {{0}}/wandb --timing-log-level 1 "
            "--logging-level 20",
            variables={"NVTE_FLASH_ATTN": "1"},
        )
