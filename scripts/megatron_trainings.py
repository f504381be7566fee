# SPDX-License-Identifier: Apache-2.0
"""Trainings on the CPU: whether one is the same with our flags.

A cell trains the entry point of a Megatron twice for four iterations, without a flag of ours and
with a window. It holds if both end well with the same loss and gradient norm in every digit that is
printed, and if the trace of every rank has each micro-batch of iteration 3 exactly once, through
all of its chunks, and modules. Where the training ends badly without a flag of ours, the cell is
not judged.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import launch_scripts
import tiny_text
from compatibility_results import ROOT, Result, last_error, today
from megatron_cells import Cell, checked_out
from microbatch_spans import TWO_RANKS, Expected, passes

MODEL = (
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 "
    "--max-position-embeddings 32 --micro-batch-size 1 --global-batch-size 2 --train-iters 4 "
    "--lr 1e-3 --log-interval 1 --eval-interval 1000 --eval-iters 0"
)
MOCK = "--mock-data --tokenizer-type NullTokenizer --vocab-size 8191"
"""Mock data of older versions counts tokens up to 4,095."""
PROFILED = (
    "--torch-profile --torch-profile-ranks all --torch-profile-spans phases modules "
    "--torch-profile-dir"
)
SECONDS = 600


def run(
    train: Callable[[Path, list[str]], tuple[int, str]],
    scratch: Path,
    expected: Expected = TWO_RANKS,
    versions: dict[str, str] | None = None,
    tried: tuple[str, ...] = (),
) -> Result:
    """Train twice, and compare.

    Args:
        train: trains in a folder with flags of ours; gives its status and what it said.
        scratch: where the folder lies.
        expected: what the traces should have.
        versions: of what trains; None for those of this process.
        tried: flags without which the cell says nothing.
    """
    folder = Path(tempfile.mkdtemp(dir=scratch))
    result = Result(today(), works=False, found="", versions=versions or _versions())
    plain = train(folder, [])
    if plain[0]:
        result.judged = False
        why = last_error(plain[1])
        result.found = f"without --torch-profile it already ends with status {plain[0]}: {why}"
        return result
    if back := [flag for flag in tried if taken_back(flag, plain[1])]:
        result.judged = False
        result.found = f"--cpu takes {', '.join(back)} back, so it was not tried"
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
    result.works, result.found = _judged(folder, expected)
    if held := re.search(r"stop-holds-training\] rank 0: (.*)", profiled[1]):
        result.found = f"{result.found}; it says: {held[1]}"
    return result


def _judged(folder: Path, expected: Expected) -> tuple[bool, str]:
    """Whether the traces have what they should, and what they have, in words."""
    files = [
        sorted(folder.rglob(f"rank-{rank}.pt.trace.json.gz")) for rank in range(expected.ranks)
    ]
    if any(len(each) != 1 for each in files):
        return False, f"{sum(map(len, files))} traces instead of {expected.ranks}"
    traces = [json.loads(gzip.decompress(each[0].read_bytes()))["traceEvents"] for each in files]
    modules = min(len({one["name"] for one in trace if _is_module(one)}) for trace in traces)
    found = [passes(trace, expected) for trace in traces]
    faults = [f"rank {rank}: {fault}" for rank, each in enumerate(found) for fault in each.faults]
    whole = expected.microbatches * expected.chunks
    said = (
        f"same losses; {found[0].found['forward']} forward and {found[0].found['backward']} "
        f"backward micro-batches of {whole}; {modules} modules"
    )
    works = not faults and modules > 5
    more = [f"and {len(faults) - _FAULTS} more"] if len(faults) > _FAULTS else []
    return works, "; ".join([said, *faults[:_FAULTS], *more])


def _is_module(event: Mapping[str, Any]) -> bool:
    return bool(re.fullmatch(r"\w+(?:\.\w+)+: [A-Z]\w+", str(event.get("name"))))


_FAULTS = 3
"""So many are told."""


def taken_back(flag: str, output: str) -> bool:
    """Whether `--cpu` said that it trains without this flag of Megatron."""
    name = re.escape(flag.removeprefix("--").replace("-", "_"))
    return bool(re.search(rf"^\[torch-profile cpu-flags\].*[ ,]{name} ", output, re.MULTILINE))


def launched(launch: launch_scripts.Launch, clones: dict[str, Path], scratch: Path) -> Result:
    megatron = clones[launch_scripts.MEGATRON]
    checkout = checked_out(megatron, launch.branch, scratch)
    at = launch.branch if launch.repository == launch_scripts.MEGATRON else "HEAD"
    shown = ["git", "-C", str(clones[launch.repository]), "show", f"{at}:{launch.path}"]
    text = subprocess.check_output(shown, text=True)

    def train(folder: Path, ours: list[str]) -> tuple[int, str]:
        prepared = launch_scripts.prepared(launch, text, checkout, folder, ours)
        return said(prepared.command, folder, (checkout,), prepared.environment)

    return run(train, scratch)


def train_cell(cell: Cell, folder: Path, ours: list[str]) -> tuple[int, str]:
    data = tiny_text.flags(folder, cell.text == "legacy") if cell.text else MOCK.split()
    ranks = cell.expected.ranks
    launcher = [*LAUNCHER, str(ranks)] if ranks > 1 else []
    command = [
        sys.executable, *launcher, *launch_scripts.WORD.split(),
        "--cpu", *cell.words, *MODEL.split(), *data, *cell.more, *ours,
    ]  # fmt: skip
    connections = {"CUDA_DEVICE_MAX_CONNECTIONS": cell.connections}
    return said(command, folder, cell.path, connections)


def refused(cell: Cell, scratch: Path) -> Result:
    """Start a fork that has flags of our names; it holds if one sentence of ours ends the launch.

    Args:
        cell: with a flag that both have.
        scratch: where its folder lies.
    """
    status, output = train_cell(cell, Path(tempfile.mkdtemp(dir=scratch)), ["--torch-profile"])
    # A rank that its launcher has not ended by then says the same.
    sentences = set(re.findall(r"^torch-profile: error: .*$", output, re.MULTILINE))
    works = status != 0 and len(sentences) == 1 and "flags of its own" in next(iter(sentences))
    how = "the launch ends before training and says" if works else f"it ends with status {status}"
    # Without Megatron's own reason the fork has never come to its flags.
    return Result(today(), works, f"{how}: {last_error(output)}", _versions(), bool(sentences))


def attached(python: str, scratch: Path) -> tuple[str, Result]:
    """A loop without a Megatron, under another Python with another torch.

    Returns:
        The name of the cell, and what came out.
    """
    versions = versions_of(python)
    train = _loop(python, ("scripts/attached_loop.py",))
    return f"torch {versions['torch']}", run(train, scratch, versions=versions)


def bridged(python: str, scratch: Path) -> tuple[str, Result]:
    """Megatron-Bridge's loop, under a Python that has Megatron-Bridge.

    Returns:
        The name of the cell, and what came out.
    """
    versions = versions_of(python, "megatron-core", "megatron-bridge")
    train = _loop(python, (*launch_scripts.WORD.split(), "--cpu", "scripts/bridge_loop.py"))
    name = f"loop Megatron-Bridge {versions.pop('megatron-bridge')}, pretrain"
    return name, run(train, scratch, versions=versions)


def versions_of(python: str, *packages: str) -> dict[str, str]:
    told = "import platform, sys; from importlib.metadata import version; "
    told += "print(platform.python_version(), *map(version, sys.argv[1:]))"
    words = subprocess.check_output([python, "-c", told, "torch", *packages], text=True).split()
    numbers = (word.partition("+")[0] for word in words)
    return dict(zip(("python", "torch", *packages), numbers, strict=True))


def _loop(python: str, words: tuple[str, ...]) -> Callable[[Path, list[str]], tuple[int, str]]:
    """Trains a loop of this repository on two ranks; the last word is its script."""
    command = [python, *LAUNCHER, "2", *words[:-1], str(ROOT / words[-1])]
    return lambda folder, ours: said([*command, *ours], folder, (), {})


LAUNCHER = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


def said(
    command: list[str], folder: Path, path: tuple[Path, ...], more: dict[str, str]
) -> tuple[int, str]:
    """Run a command on the CPU, a path and this checkout first on PYTHONPATH."""
    # In this order: Megatron's entry points import from its `pretrain_gpt`, and we have one, too.
    search = [*map(str, path), str(ROOT), os.environ.get("PYTHONPATH", "")]
    programs = [str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = os.environ | {
        # A checkout compiles its helpers with the `python3` and `python3-config` of PATH.
        "PATH": os.pathsep.join(programs),
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
    python = ".".join(map(str, sys.version_info[:3]))
    return {"python": python, "torch": metadata.version("torch").split("+")[0]}
