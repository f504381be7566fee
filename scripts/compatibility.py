# SPDX-License-Identifier: Apache-2.0
"""Runs the cells of docs/compatibility.md that this machine can, and writes the page.

    python scripts/compatibility.py                               the wheels of .wheels/
    python scripts/compatibility.py --checkouts ~/Megatron-LM     its core_r* branches and main, too
    python scripts/compatibility.py --launch NVIDIA/Megatron-LM=~/Megatron-LM ...
                                                                  launch_scripts.py's, of clones
    python scripts/compatibility.py --pythons python3.10 ...      the read side on these
    python scripts/compatibility.py --gpu FILE --versions torch=2.11    what benchmarks/
                                                                  megatron_features.py found on GPUs
    python scripts/compatibility.py --only "wheel 0.19.2"         some cells; the others keep theirs
    python scripts/compatibility.py --page                        the page alone

A cell trains the entry point of a Megatron twice on the CPU for four iterations, without a flag of
ours and with a window. It holds if both end well with the same loss and gradient norm in every
digit that is printed, and if the trace has the micro-batches and modules of iteration 3. Results
lie in docs/compatibility.json, each with its date; what was never run has no row. Where the
training ends badly without a flag of ours, the cell is not judged, and its row says why.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import launch_scripts

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE = ROOT / "docs" / "compatibility.json", ROOT / "docs" / "compatibility.md"
MODEL = (
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 "
    "--max-position-embeddings 32 --micro-batch-size 1 --global-batch-size 2 --train-iters 4 "
    "--lr 1e-3 --log-interval 1 --eval-interval 1000 --eval-iters 0 --mock-data "
    "--tokenizer-type NullTokenizer --vocab-size 255"
)
OLD = "--use-mcore-models"
PROFILED = "--torch-profile --torch-profile-spans phases modules --torch-profile-dir"
RECORDED = "tests/data/tp2pp2-spans"
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


@dataclass
class Result:
    """What a cell has shown, and when.

    Args:
        date: of the run.
        works: whether the training with our flags is the one without them.
        found: in words.
        versions: of what it ran with.
        judged: False if already the training without our flags ends badly.
    """

    date: str
    works: bool
    found: str
    versions: dict[str, str] = field(default_factory=dict)
    judged: bool = True


def cells(options: argparse.Namespace, scratch: Path) -> Iterator[Cell]:
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
    result = Result(time.strftime("%Y-%m-%d"), works=False, found="", versions=_versions())
    plain = train(folder, [])
    if plain[0]:
        result.judged = False
        result.found = (
            f"without --torch-profile it already ends with status {plain[0]}: {_last(plain[1])}"
        )
        return result
    profiled = train(folder, [*PROFILED.split(), str(folder / "runs")])
    if profiled[0]:
        result.found = (
            f"with --torch-profile it ends with status {profiled[0]}: {_last(profiled[1])}"
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


def _launches(
    clones: dict[str, Path], options: argparse.Namespace, scratch: Path
) -> Iterator[tuple[str, Result]]:
    """The published launch scripts of the repositories that are there, by name."""
    for launch in launch_scripts.LAUNCHES:
        name = f"launch {launch.name}"
        if launch.repository in clones and (not options.only or name in options.only):
            yield name, _launched(launch, clones, scratch)


def _launched(launch: launch_scripts.Launch, clones: dict[str, Path], scratch: Path) -> Result:
    megatron = clones[launch_scripts.MEGATRON]
    checkout = _checked_out(megatron, launch.branch, scratch)
    at = launch.branch if launch.repository == launch_scripts.MEGATRON else "HEAD"
    shown = ["git", "-C", str(clones[launch.repository]), "show", f"{at}:{launch.path}"]
    text = subprocess.check_output(shown, text=True)

    def train(folder: Path, ours: list[str]) -> tuple[int, str]:
        prepared = launch_scripts.prepared(launch, text, checkout, folder, ours)
        return _said(prepared.command, folder, (checkout,), prepared.environment)

    return run(train, scratch)


def _train(cell: Cell, folder: Path, ours: list[str]) -> tuple[int, str]:
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


def _last(output: str) -> str:
    errors = re.findall(r"^(?:\[rank\d+\]: )?(\w+(?:Error|Exception): .*)$", output, re.MULTILINE)
    lines = errors or [line for line in output.splitlines() if line.strip()] or ["nothing was said"]
    return re.sub(r"(?:/[\w.+-]+){2,}/", "", lines[-1].strip())[:200]


def _versions() -> dict[str, str]:
    import torch

    python = ".".join(map(str, sys.version_info[:3]))
    return {"python": python, "torch": torch.__version__.split("+")[0]}


def read_side(python: str, scratch: Path) -> tuple[str, Result]:
    """Install the read side alone into a new environment of a Python, and analyse a recorded run.

    Returns:
        The name of the cell, and what came out: it holds if the answers are those of this Python.
    """
    environment = Path(tempfile.mkdtemp(dir=scratch))
    subprocess.run([python, "-m", "venv", str(environment)], check=True)
    other = environment / "bin" / "python"
    told = "import platform; print(platform.python_version())"
    version = subprocess.check_output([other, "-c", told], text=True).strip()
    result = Result(time.strftime("%Y-%m-%d"), False, "", {"python": version})
    name = f"read Python {version.rpartition('.')[0]}"
    installed = subprocess.run(
        [other, "-m", "pip", "install", "--quiet", str(ROOT)], capture_output=True, text=True
    )
    if installed.returncode:
        result.found = f"the installation fails: {_last(installed.stderr)}"
        return name, result
    for command in (["analyze", "--json", "--no-gains"], ["info"], ["check"]):
        ours, theirs = (
            subprocess.run(
                [one, "-m", "megatron.torch_trace", *command, str(ROOT / RECORDED)],
                capture_output=True, text=True, cwd=scratch, env=_without_path(one == other),
            )
            for one in (sys.executable, other)
        )  # fmt: skip
        if theirs.returncode or ours.returncode or not _same(ours.stdout, theirs.stdout):
            why = _last(theirs.stderr) if theirs.returncode else "another answer"
            result.found = f"torch-trace {command[0]}: {why}"
            return name, result
    result.works = True
    result.found = "analyze, info and check say the same, whole numbers and words to the last digit"
    return name, result


def _same(one: str, other: str) -> bool:
    """Whether two answers are the same; from 3.12 on Python adds fractions more exactly."""
    if one == other:
        return True
    fraction = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
    if fraction.sub("", one) != fraction.sub("", other):
        return False
    pairs = zip(fraction.findall(one), fraction.findall(other), strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=1e-12) for a, b in pairs)


def _without_path(installed: bool) -> dict[str, str]:
    """The environment, with this checkout on PYTHONPATH only for the Python that lacks it."""
    path = "" if installed else str(ROOT)
    return os.environ | {"PYTHONPATH": path, "COLUMNS": "100"}


def write_page(results: dict[str, Result]) -> None:
    """The page, from all results that there are."""
    groups = {
        "wheel": "Wheels of megatron-core, with this repository's `pretrain_gpt.py`",
        "feature": "Flags of Megatron, with the newest of these wheels",
        "checkout": "Checkouts of Megatron-LM, with their own entry points",
        "torch": "Versions of torch",
        "launch": "Launch scripts that people publish",
        "read": "The read side",
        "gpu": "On GPUs",
    }
    parts = [_HEAD]
    for kind, heading in groups.items():
        rows = {name: one for name, one in results.items() if name.split()[0] == kind}
        if not rows:
            continue
        parts += [f"## {heading}\n", "| what | date | result |", "|---|---|---|"]
        for name, one in rows.items():
            with_ = ", ".join(f"{key} {value}" for key, value in one.versions.items())
            shown = name.partition(" ")[2]
            parts.append(f"| {shown} | {one.date} | {_word(one)} ({with_}): {one.found} |")
        parts.append("")
    PAGE.write_text("\n".join(parts))


def _word(one: Result) -> str:
    return "works" if one.works else "**fails**" if one.judged else "not judged"


_HEAD = """# Compatibility

What was run, when, and what came out. `scripts/compatibility.py` runs the cells and writes this
page from `docs/compatibility.json`; what is in no table has no result. A training *works* if it
ends well with and without `--torch-profile`, prints the same loss and gradient norm in all
iterations, and leaves a trace with the micro-batches and modules of the recorded iteration. It is
*not judged* if it ends badly without `--torch-profile`, too. Trainings run on a CPU (`--cpu`) with
two layers for four iterations unless the row says something else. A checkout compiles helpers of
its own and needs pybind11, einops and, if it is old, `setuptools<80` beside it. A launch script is
edited as the README says (`-m megatron.torch_profile` before the training script) and run by bash
on two ranks; `scripts/launch_scripts.py` makes sizes smaller and leaves out what needs GPUs or
files of others, so the row is about the script's form and its remaining flags.
"""


def _save(results: dict[str, Result]) -> None:
    text = json.dumps({name: asdict(one) for name, one in results.items()}, indent=1)
    RESULTS.write_text(f"{text}\n")


def _found(options: argparse.Namespace, scratch: Path) -> Iterator[tuple[str, Result]]:
    """The names and results of what the command line asks for, one after the other."""
    if options.launch:
        clones = dict(word.split("=", 1) for word in options.launch)
        yield from _launches(
            {name: Path(clone) for name, clone in clones.items()}, options, scratch
        )
    for python in options.pythons:
        yield read_side(python, scratch)
    if options.page or options.pythons or options.gpu or options.launch:
        return
    for cell in cells(options, scratch):
        if not options.only or cell.name in options.only:
            yield cell.name, run(partial(_train, cell), scratch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkouts", type=Path, help="a clone of Megatron-LM")
    parser.add_argument("--launch", nargs="+", metavar="OWNER/NAME=CLONE", help="launch scripts of")
    parser.add_argument("--pythons", nargs="+", default=[], help="interpreters for the read side")
    parser.add_argument("--gpu", type=Path, help="results of benchmarks/megatron_features.py")
    parser.add_argument("--versions", nargs="+", default=[], metavar="NAME=VERSION")
    parser.add_argument("--only", nargs="+", metavar="CELL", help="names of cells")
    parser.add_argument("--page", action="store_true", help="write the page, run nothing")
    parser.add_argument("--scratch", type=Path, help="folder for checkouts and runs")
    options = parser.parse_args()
    written = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    results = {name: Result(**one) for name, one in written.items()}
    with tempfile.TemporaryDirectory() as temporary:
        for name, found in _found(options, options.scratch or Path(temporary)):
            results[name] = found
            print(f"{name}: {_word(found)}: {found.found}", flush=True)
            _save(results)
    if options.gpu:
        versions = dict(word.split("=", 1) for word in options.versions)
        for name, part in json.loads(options.gpu.read_text()).items():
            said = "; ".join(_last(one) for one in part["faults"] or part["figures"])
            works = not part["faults"]
            results[f"gpu {name}"] = Result(time.strftime("%Y-%m-%d"), works, said, versions)
        _save(results)
    write_page(results)


if __name__ == "__main__":
    main()
