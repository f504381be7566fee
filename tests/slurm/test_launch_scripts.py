# SPDX-License-Identifier: Apache-2.0
"""The scripts that people copy: they parse, shellcheck has nothing to say, examples apply."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest

from megatron.torch_profile.config import TorchProfileConfig, flag_of

ROOT = Path(__file__).parents[2]
LAUNCHERS = [
    ROOT / "scripts" / name
    for name in (
        "pretrain_gpt_torchrun.sh",
        "pretrain_gpt_slurm.sbatch",
        "pretrain_gpt_srun.sbatch",
    )
]
EXAMPLES = ROOT / "examples" / "launch"
SCRIPTS = sorted(
    [*ROOT.glob("scripts/*.sh"), *ROOT.glob("scripts/*.sbatch"), *EXAMPLES.glob("*.sbatch")]
)


def run(*command: str | Path) -> None:
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.name)
def test_bash_reads_it(script: Path) -> None:
    run("bash", "-n", script)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.name)
def test_shellcheck_has_nothing_to_say(script: Path) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed (Debian: apt install shellcheck)")
    run("shellcheck", "--external-sources", script)


def block(script: Path) -> list[str]:
    """The lines between the two rulers: what a user edits."""
    lines = script.read_text().splitlines()
    first, last = (number for number, line in enumerate(lines) if line.startswith("# ----"))
    return lines[first:last]


def test_what_users_edit_is_the_same_in_all_launchers() -> None:
    ours, *others = map(block, LAUNCHERS)
    for other in others:
        # Only SLURM's nodes have a scratch folder.
        without = [line for line in other if "SCRATCH" not in line and "A disk of" not in line]
        assert without == ours


@pytest.mark.parametrize("script", LAUNCHERS, ids=lambda p: p.name)
def test_the_profiling_block_has_the_flags_that_users_know(script: Path) -> None:
    known = [flag_of(field.name) for field in fields(TorchProfileConfig)]
    named = re.findall(r"--torch-profile[\w-]*", "\n".join(block(script)))
    assert set(named) <= set(known)
    assert set(known[:12]) <= set(named)


def test_the_example_applies_and_is_a_script_that_shellcheck_likes(tmp_path: Path) -> None:
    if shutil.which("patch") is None:
        pytest.skip("patch is not installed (Debian: apt install patch)")
    shutil.copy(EXAMPLES / "train_gpt.sbatch", tmp_path)
    run("patch", "--directory", tmp_path, "--strip", "1", "--input", EXAMPLES / "before-after.diff")
    after = tmp_path / "train_gpt.sbatch"
    run("bash", "-n", after)
    assert "-m megatron.torch_profile" in after.read_text()
    known = {flag_of(field.name) for field in fields(TorchProfileConfig)}
    assert set(re.findall(r"--torch-profile[\w-]*", after.read_text())) <= known
    if shutil.which("shellcheck"):
        run("shellcheck", after)
