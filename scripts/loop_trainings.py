# SPDX-License-Identifier: Apache-2.0
"""Other packages' own training loops on the CPU, with the lines of docs/other-loops.md.

Our settings come from the environment, as that page says, and a window is switched on by it alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import launch_scripts
from compatibility_results import ROOT, Result
from megatron_trainings import LAUNCHER, run, said, versions_of
from microbatch_spans import TWO_RANKS, Expected


@dataclass(frozen=True)
class Loop:
    """A package with a loop of its own.

    Args:
        script: below scripts/loops.
        trains: what of the package trains, for the row.
        package: its distribution.
        others: distributions whose versions the row has, too.
        expected: what the traces should have, and how many ranks train.
        environment: what the script needs.
        runner: what stands before the script; nothing for loops without megatron-core.
    """

    script: str
    trains: str
    package: str
    others: tuple[str, ...] = ("megatron-core",)
    expected: Expected = TWO_RANKS
    environment: dict[str, str] = field(default_factory=dict)
    runner: tuple[str, ...] = (*launch_scripts.WORD.split(), "--cpu")


LOOPS = {
    "verl": Loop(
        "verl_loop.py",
        "sft_trainer, its Megatron engine",
        "verl",
        ("megatron-core", "megatron-bridge", "transformers"),
        environment={"VERL_PLATFORM": "nvidia"},
    ),
    "ms-swift": Loop(
        "swift_loop.py",
        "megatron sft",
        "ms-swift",
        ("megatron-core", "mcore-bridge", "transformers"),
    ),
    "slime": Loop(
        "slime_loop.py",
        "train",
        "slime",
        environment={"SLIME_ACCELERATOR": "cpu"},
    ),
    "torchtitan": Loop("titan_loop.py", "Trainer, FSDP2", "torchtitan", (), runner=()),
    "lightning": Loop("lightning_loop.py", "Trainer of NeMo 2, DDP", "lightning", (), runner=()),
}


def loop_trained(name: str, python: str, scratch: Path) -> tuple[str, Result]:
    """Train a loop, under a Python that has its package.

    Returns:
        The name of the cell, and what came out.
    """
    loop = LOOPS[name]
    versions = versions_of(python, *loop.others, loop.package)
    script = str(ROOT / "scripts" / "loops" / loop.script)
    command = [python, *LAUNCHER, str(loop.expected.ranks), *loop.runner, script]

    def train(folder: Path, ours: list[str]) -> tuple[int, str]:
        settings = _settings(folder) if ours else {}
        return said(command, folder, (), {**loop.environment, **settings})

    row = f"loop {loop.package} {versions.pop(loop.package)}, {loop.trains}"
    return row, run(train, scratch, loop.expected, versions)


def _settings(folder: Path) -> dict[str, str]:
    prefix = "MEGATRON_TORCH_PROFILE"
    return {
        prefix: "1",
        f"{prefix}_RANKS": "all",
        f"{prefix}_SPANS": "phases modules",
        f"{prefix}_DIR": str(folder / "runs"),
    }
