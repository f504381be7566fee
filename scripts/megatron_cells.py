# SPDX-License-Identifier: Apache-2.0
"""Which trainings the matrix has: wheels, flags, and checkouts with their own entry points."""

from __future__ import annotations

import re
import subprocess
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from compatibility_results import ROOT
from microbatch_spans import TWO_RANKS, Expected

ALONE = Expected(ranks=1)
OLD = "--use-mcore-models"
LOCAL = ("--transformer-impl", "local")


@dataclass(frozen=True)
class Cell:
    """One Megatron and one of its entry points.

    Args:
        name: of the row.
        script: the entry point.
        path: what stands on PYTHONPATH behind this repository.
        more: flags of this cell.
        expected: what the traces should have, and how many ranks train.
        tried: flags without which the cell says nothing.
        text: it trains on a text; Megatron's old tokenizer is asked for it if this is "legacy".
        starter: a script of ours that starts the entry point, if it cannot start by itself.
    """

    name: str
    script: Path
    path: tuple[Path, ...]
    more: tuple[str, ...] = ()
    expected: Expected = ALONE
    tried: tuple[str, ...] = ()
    text: str | None = None
    starter: Path | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """What stands in the command line for the entry point."""
        return tuple(str(one) for one in (self.starter, self.script) if one is not None)

    @property
    def connections(self) -> str:
        """What `CUDA_DEVICE_MAX_CONNECTIONS` is; FSDP refuses one."""
        return "32" if any("fsdp" in flag for flag in self.tried) else "1"


@dataclass(frozen=True)
class Feature:
    """Flags that are tried with the newest wheel.

    Args:
        flags: which the row names.
        more: flags that those need, and sizes.
        ranks: how many train.
        microbatches: of an iteration.
        chunks: of the model on a rank.
        script: the entry point, below this repository.
    """

    flags: str
    more: str = ""
    ranks: int = 1
    microbatches: int = 2
    chunks: int = 1
    script: str = "pretrain_gpt.py"

    @property
    def name(self) -> str:
        return f"feature `{self.flags}`, {self.ranks} rank{'s' * (self.ranks > 1)}"

    @property
    def expected(self) -> Expected:
        turns = _COMBINED in self.flags
        return Expected(self.ranks, self.microbatches, self.chunks, turns)


_COMBINED = "--overlap-moe-expert-parallel-comm"
_DELAYED = "scripts/delayed_gradients.py"
_PP2 = "--pipeline-model-parallel-size 2"
_EP2 = (
    "--num-experts 4 --expert-model-parallel-size 2 --moe-token-dispatcher-type alltoall --bf16 "
    "--disable-bias-linear --global-batch-size 4"
)
FEATURES = (
    Feature("--mtp-num-layers 1", "--position-embedding-type rope"),
    Feature(f"--mtp-num-layers 1 {_PP2}", "--position-embedding-type rope", ranks=2),
    Feature(_COMBINED, _EP2, ranks=2),
    Feature(f"{_COMBINED} --delay-wgrad-compute", _EP2, ranks=2, script=_DELAYED),
    Feature(
        f"{_COMBINED} --num-layers-per-virtual-pipeline-stage 1 {_PP2}",
        f"{_EP2} --num-layers 4 --global-batch-size 8",
        ranks=4,
        microbatches=4,
        chunks=2,
    ),
    Feature("--context-parallel-size 2 --cp-comm-type p2p", ranks=2),
    Feature("--context-parallel-size 2 --cp-comm-type a2a", ranks=2),
    Feature("--context-parallel-size 2 --cp-comm-type allgather", ranks=2),
    Feature(
        "--context-parallel-size 4 --hierarchical-context-parallel-sizes 2 2 "
        "--cp-comm-type a2a+p2p",
        ranks=4,
    ),
    Feature(
        "--use-torch-fsdp2",
        "--untie-embeddings-and-output-weights --ckpt-format torch_dist --global-batch-size 4",
        ranks=2,
    ),
    Feature(
        "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params",
        "--use-distributed-optimizer --ckpt-format fsdp_dtensor --global-batch-size 4 "
        "--no-gradient-reduce-div-fusion",  # which only NCCL has
        ranks=2,
    ),
    Feature(
        f"--num-layers-per-virtual-pipeline-stage 1 {_PP2}", "--num-layers 4", ranks=2, chunks=2
    ),
    Feature("--fine-grained-activation-offloading --offload-modules core_attn"),
)

OLD_ENGINES = ("core_r0.6.0", "core_r0.7.0", "v0.7-tsubame")
"""Branches that import Transformer Engine and Apex whatever the model."""
BRANCHES_WITH_OLD = ("core_r0.6.0", "core_r0.7.0", "core_r0.8.0")
_TWO_EACH = "--global-batch-size 4"
_BERT = f"--bert-no-binary-head --spec local --attention-backend local {_TWO_EACH}"
_T5 = f"--decoder-num-layers 2 --decoder-seq-length 32 {_TWO_EACH}"
_DYNAMIC = "--max-seqlen-per-dp-cp-rank 16 --calculate-per-token-loss --dataloader-type single"
_OF_TEXT = ("pretrain_bert.py", "pretrain_t5.py")
_LEGACY = {"core_r0.15.0": "--vocab-extra-ids 10"}
"""Branches whose own tokenizer needs no network, and flags that it needs."""
ENTRY_POINTS: dict[str, dict[str, str]] = {
    "core_r0.15.0": {"pretrain_bert.py": _BERT, "pretrain_t5.py": _T5},
    "main": {
        "examples/bert/pretrain_bert.py": _BERT,
        "examples/t5/pretrain_t5.py": _T5,
        "pretrain_hybrid.py": f"--hybrid-layer-pattern *-|*- --spec local_hybrid STACK {_PP2}",
        "pretrain_vlm.py": (
            f"--ckpt-format torch --img-h 28 --img-w 28 --patch-dim 14 {_TWO_EACH}"
        ),
        "train_rl.py": (
            "--perform-rl-step --inference-dynamic-batching-max-requests 2 --bf16 "
            f"--grpo-prompts-per-step 1 --grpo-group-size 2 --grpo-iterations 1 {_PP2}"
        ),
        "pretrain_gpt.py --hybrid-context-parallel": f"{_DYNAMIC} --rerun-mode disabled",
    },
    # Megatron's own attention has context parallelism here and in no release yet.
    "dev": {
        "pretrain_gpt.py --context-parallel-size 2 --cp-comm-type all_gather": (
            "--attention-dropout 0"
        ),
        "pretrain_gpt.py --dynamic-context-parallel": _DYNAMIC,
    },
}
"""Entry points beside `pretrain_gpt.py`, which trains in a pipeline of two stages, and flags that
they need; a flag that the row names stands behind its entry point."""


def cells(options: Namespace, scratch: Path) -> Iterator[Cell]:
    """Every cell that can be run with what is at hand."""
    wheels = sorted((ROOT / ".wheels").glob("*.*.*"))
    for wheel in wheels:
        yield Cell(f"wheel {wheel.name}", ROOT / "pretrain_gpt.py", (wheel,), LOCAL)
    for one in FEATURES if wheels else ():
        more = (*LOCAL, *one.flags.split(), *one.more.split())
        tried = tuple(word for word in one.flags.split() if word.startswith("--"))
        yield Cell(one.name, ROOT / one.script, (wheels[-1],), more, one.expected, tried)
    if options.checkouts is None:
        return
    for branch in _branches(options.checkouts):
        gpt = f"{_PP2} {OLD}" if branch in BRANCHES_WITH_OLD else _PP2
        # Without samples to evaluate on these end before they train.
        gpt = f"{gpt} --eval-iters 1" if branch in OLD_ENGINES else gpt
        # Its optimizer of 32 bits lacks a method, so that nobody can make one.
        gpt = f"{gpt} --bf16" if branch == "core_r0.6.0" else gpt
        for entry, flags in {"pretrain_gpt.py": gpt, **ENTRY_POINTS.get(branch, {})}.items():
            name = f"checkout {branch}, {entry.rpartition('/')[2]}"
            if options.only and name not in options.only:
                continue
            folder = checked_out(options.checkouts, branch, scratch)
            script, *named = entry.split()
            path = (folder, ROOT / "scripts")  # local_hybrid
            more, text = (*LOCAL, *flags.split(), *named), None
            if script.endswith(_OF_TEXT):
                more = (*more, *_LEGACY.get(branch, "").split())
                text = "legacy" if branch in _LEGACY else "new"
            starter = _starter(branch, script)
            yield Cell(name, folder / script, path, more, TWO_RANKS, text=text, starter=starter)


FORKS = {
    "okoge-kaz/Megatron-LM": ("v0.7-tsubame", "v0.8.0-tsubame", "v0.9.0-tsubame"),
    "llm-jp/Megatron-LM": ("main", "0190_moe_core_v0.14.0"),
}
"""Forks, and branches of them."""
WITH_OUR_NAMES = "okoge-kaz/Megatron-LM"
"""Has `--torch-profile` flags of its own; the others train with ours."""


def forks(name: str, repository: Path, scratch: Path) -> Iterator[Cell]:
    """A launch of each branch of a fork."""
    more = (*LOCAL, OLD) if name == WITH_OUR_NAMES else (*LOCAL, *_PP2.split())
    for branch in FORKS[name]:
        folder = checked_out(repository, branch, scratch / name)
        entry, starter = folder / "pretrain_gpt.py", _starter(branch)
        yield Cell(f"fork {name}, {branch}", entry, (folder,), more, TWO_RANKS, starter=starter)


def _starter(branch: str, entry: str = "") -> Path | None:
    name = "old_engines" if branch in OLD_ENGINES else _STARTERS.get(entry)
    return ROOT / "scripts" / f"{name}.py" if name else None


_STARTERS = {"train_rl.py": "toy_rollouts"}
"""Entry points that need something else than engines."""


def _branches(repository: Path) -> list[str]:
    # Not refname:short, which puts "heads/" before a name that a tag has, too.
    named = "--format=%(refname:lstrip=2)"
    listed = subprocess.run(
        ["git", "-C", str(repository), "for-each-ref", named, "refs/heads"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    numbered = [name for name in listed if re.fullmatch(r"core_r0\.\d+\.0", name)]
    supported = [name for name in numbered if int(name.split(".")[1]) >= 6]
    newest = [name for name in ("main", "dev") if name in listed]
    return [*sorted(supported, key=lambda name: int(name.split(".")[1])), *newest]


def checked_out(repository: Path, branch: str, scratch: Path) -> Path:
    folder = scratch / branch
    if not folder.is_dir():
        folder.mkdir(parents=True)
        archive = subprocess.run(
            ["git", "-C", str(repository), "archive", f"refs/heads/{branch}"],
            capture_output=True,
            check=True,
        )
        subprocess.run(["tar", "x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder
