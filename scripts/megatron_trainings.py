# SPDX-License-Identifier: Apache-2.0
"""Trainings on the CPU: which there are, and whether one is the same with our flags.

A cell trains the entry point of a Megatron twice for four iterations, without a flag of ours and
with a window. It holds if both end well with the same loss and gradient norm in every digit that is
printed, and if the trace has the micro-batches and modules of iteration 3. Where the training ends
badly without a flag of ours, the cell is not judged.
"""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import launch_scripts
from compatibility_results import ROOT, Result, last_error, today

MODEL = (
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 "
    "--max-position-embeddings 32 --micro-batch-size 1 --global-batch-size 2 --train-iters 4 "
    "--lr 1e-3 --log-interval 1 --eval-interval 1000 --eval-iters 0 --mock-data "
    "--tokenizer-type NullTokenizer --vocab-size 255"
)
OLD = "--use-mcore-models"
PROFILED = "--torch-profile --torch-profile-spans phases modules --torch-profile-dir"
SECONDS = 600
OWN = ("--transformer-impl", "local", "--vocab-size", "8191")
"""Mock data of older versions counts tokens up to 4,095."""


@dataclass(frozen=True)
class Cell:
    """One Megatron and one of its entry points.

    Args:
        name: of the row.
        script: the entry point.
        path: what stands on PYTHONPATH behind this repository.
        more: flags of this cell.
        ranks: how many train.
    """

    name: str
    script: Path
    path: tuple[Path, ...]
    more: tuple[str, ...] = ()
    ranks: int = 1


def cells(options: Namespace, scratch: Path) -> Iterator[Cell]:
    """Every cell that can be run with what is at hand."""
    wheels = sorted((ROOT / ".wheels").glob("*.*.*"))
    for wheel in wheels:
        yield Cell(f"wheel {wheel.name}", ROOT / "pretrain_gpt.py", (wheel,), OWN)
    for flags, ranks in FEATURES.items():
        more = (*OWN, *flags.split())
        name = f"feature `{flags}`, {ranks} rank{'s' * (ranks > 1)}"
        yield Cell(name, ROOT / "pretrain_gpt.py", (wheels[-1],), more, ranks)
    if options.checkouts is None:
        return
    for branch in _branches(options.checkouts):
        others = ENTRY_POINTS.get(branch, {})
        for entry in ("gpt", *others):
            name = f"checkout {branch}, pretrain_{entry}.py"
            if options.only and name not in options.only:
                continue
            folder = _checked_out(options.checkouts, branch, scratch)
            old = branch in ("core_r0.6.0", "core_r0.7.0", "core_r0.8.0")
            more = others.get(entry, (*OWN, *((OLD,) if old else ())))
            yield Cell(name, folder / f"pretrain_{entry}.py", (folder,), more)


FEATURES = {
    "--mtp-num-layers 1 --position-embedding-type rope": 1,
    "--delay-wgrad-compute": 1,
    "--context-parallel-size 2 --cp-comm-type p2p": 2,
    "--fine-grained-activation-offloading --offload-modules core_attn": 1,
}
"""Flags that are tried with the newest wheel, and on how many ranks."""


ENTRY_POINTS: dict[str, dict[str, tuple[str, ...]]] = {
    "core_r0.15.0": {
        "bert": (*OWN, "--bert-no-binary-head"),
        "t5": (
            *OWN, "--encoder-num-layers", "2", "--decoder-num-layers", "2",
            "--encoder-seq-length", "32", "--decoder-seq-length", "32", "--vocab-extra-ids", "10",
        ),
    },
    "main": {
        "hybrid": (
            "--hybrid-layer-pattern", "*-", "--spec",
            "megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec",
        ),
    },
}  # fmt: skip
"""Entry points beside `pretrain_gpt.py`."""


def _branches(repository: Path) -> list[str]:
    # Not refname:short, which puts "heads/" before a name that a tag has, too.
    named = "--format=%(refname:lstrip=2)"
    listed = subprocess.run(
        ["git", "-C", str(repository), "for-each-ref", named, "refs/heads"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    numbered = [name for name in listed if re.fullmatch(r"core_r0\.\d+\.0", name)]
    supported = [name for name in numbered if int(name.split(".")[1]) >= 6]
    return [*sorted(supported, key=lambda name: int(name.split(".")[1])), "main"]


def _checked_out(repository: Path, branch: str, scratch: Path) -> Path:
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


def run(train: Callable[[Path, list[str]], tuple[int, str]], scratch: Path) -> Result:
    """Train twice, and compare.

    Args:
        train: trains in a folder with flags of ours; gives its status and what it said.
        scratch: where the folder lies.
    """
    folder = Path(tempfile.mkdtemp(dir=scratch))
    result = Result(today(), works=False, found="", versions=_versions())
    plain = train(folder, [])
    if plain[0]:
        result.judged = False
        why = last_error(plain[1])
        result.found = f"without --torch-profile it already ends with status {plain[0]}: {why}"
        return result
    profiled = train(folder, [*PROFILED.split(), str(folder / "runs")])
    if profiled[0]:
        result.found = (
            f"with --torch-profile it ends with status {profiled[0]}: {last_error(profiled[1])}"
        )
        return result
    if not _losses(plain[1]) or _losses(plain[1]) != _losses(profiled[1]):
        result.found = "the losses are not the same"
        return result
    traces = sorted(folder.rglob("rank-0.pt.trace.json.gz"))
    if len(traces) != 1:
        result.found = f"{len(traces)} traces instead of one"
        return result
    text = gzip.decompress(traces[0].read_bytes()).decode(errors="replace")
    counts = {
        "forward": len(re.findall(r'"forward micro-batch \d', text)),
        "backward": len(re.findall(r'"backward micro-batch \d', text)),
        "modules": len(set(re.findall(r'"(\w+(?:\.\w+)+: [A-Z]\w+)"', text))),
    }
    result.works = counts["forward"] == counts["backward"] == 2 and counts["modules"] > 5
    result.found = (
        f"same losses; {counts['forward']} forward and {counts['backward']} backward "
        f"micro-batches of 2; {counts['modules']} modules"
    )
    return result


def launched(launch: launch_scripts.Launch, clones: dict[str, Path], scratch: Path) -> Result:
    megatron = clones[launch_scripts.MEGATRON]
    checkout = _checked_out(megatron, launch.branch, scratch)
    at = launch.branch if launch.repository == launch_scripts.MEGATRON else "HEAD"
    shown = ["git", "-C", str(clones[launch.repository]), "show", f"{at}:{launch.path}"]
    text = subprocess.check_output(shown, text=True)

    def train(folder: Path, ours: list[str]) -> tuple[int, str]:
        prepared = launch_scripts.prepared(launch, text, checkout, folder, ours)
        return _said(prepared.command, folder, (checkout,), prepared.environment)

    return run(train, scratch)


def train_cell(cell: Cell, folder: Path, ours: list[str]) -> tuple[int, str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(cell.ranks)]
    command = [
        sys.executable, *(launcher if cell.ranks > 1 else []), *launch_scripts.WORD.split(),
        "--cpu", str(cell.script), *MODEL.split(), *cell.more, *ours,
    ]  # fmt: skip
    return _said(command, folder, cell.path, {})


def _said(
    command: list[str], folder: Path, path: tuple[Path, ...], more: dict[str, str]
) -> tuple[int, str]:
    """Run a command on the CPU, this checkout and a path first on PYTHONPATH."""
    search = [str(ROOT), *map(str, path), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, search)),
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONWARNINGS": "ignore",
        **more,
    }
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return 124, f"it runs longer than {SECONDS} s"
    return done.returncode, f"{done.stdout}\n{done.stderr}"


def _losses(output: str) -> list[tuple[str, ...]]:
    return re.findall(r"iteration +(\d+)/.*?loss: (\S+) .*?grad norm: (\S+)", output)


def _versions() -> dict[str, str]:
    import torch

    python = ".".join(map(str, sys.version_info[:3]))
    return {"python": python, "torch": torch.__version__.split("+")[0]}
