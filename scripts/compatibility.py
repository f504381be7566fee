# SPDX-License-Identifier: Apache-2.0
"""Runs the cells of docs/compatibility.md that this machine can, and writes the page.

    python scripts/compatibility.py                               the wheels of .wheels/
    python scripts/compatibility.py --checkouts ~/Megatron-LM     its core_r* branches and main, too
    python scripts/compatibility.py --launch NVIDIA/Megatron-LM=~/Megatron-LM ...
                                                                  launch_scripts.py's, of clones
    python scripts/compatibility.py --forks llm-jp/Megatron-LM=~/llm-jp-Megatron-LM ...
                                                                  branches of forks
    python scripts/compatibility.py --pythons python3.10 ...      the read side on these
    python scripts/compatibility.py --recorders ~/torch-1.8/bin/python ...
                                                                  the read side, on traces of these
    python scripts/compatibility.py --torches ~/torch-2.6/bin/python ...
                                                                  a loop with the torch of these
    python scripts/compatibility.py --bridges ~/bridge/bin/python ...
                                                                  the loop of Megatron-Bridge
    python scripts/compatibility.py --loops verl=~/verl/bin/python ...
                                                                  other packages' own loops
    python scripts/compatibility.py --gpu FILE --versions torch=2.11    what benchmarks/
                                                                  megatron_features.py found on GPUs
    python scripts/compatibility.py --only "wheel 0.19.2"         some cells; the others keep theirs
    python scripts/compatibility.py --page                        the page alone

What a cell is stands in megatron_cells.py, megatron_trainings.py and read_side.py. Results lie in
docs/compatibility.json, each with its date; what was never run has no row.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import launch_scripts
from compatibility_results import Result, last_error, read, save, today, word, write_page
from loop_trainings import LOOPS, loop_trained
from megatron_cells import FORKS, WITH_OUR_NAMES, cells, forks
from megatron_trainings import attached, bridged, launched, refused, run, train_cell
from read_side import old_trace, read_side


def _launches(
    clones: dict[str, Path], options: argparse.Namespace, scratch: Path
) -> Iterator[tuple[str, Result]]:
    """The published launch scripts of the repositories that are there, by name."""
    for launch in launch_scripts.LAUNCHES:
        name = f"launch {launch.name}"
        if launch.repository in clones and (not options.only or name in options.only):
            yield name, launched(launch, clones, scratch)


def _found(options: argparse.Namespace, scratch: Path) -> Iterator[tuple[str, Result]]:
    """The names and results of what the command line asks for, one after the other."""
    if options.launch:
        yield from _launches(dict(options.launch), options, scratch)
    for python in options.pythons:
        yield read_side(python, scratch)
    for python in options.recorders:
        yield old_trace(python, scratch)
    for python in options.torches:
        yield attached(python, scratch)
    for python in options.bridges:
        yield bridged(python, scratch)
    for loop, python in options.loops:
        yield loop_trained(loop, python, scratch)
    for fork, clone in options.forks:
        for cell in forks(fork, clone, scratch):
            if fork == WITH_OUR_NAMES:
                yield cell.name, refused(cell, scratch)
            else:
                yield cell.name, run(partial(train_cell, cell), scratch)
    if any((options.page, options.pythons, options.torches, options.recorders, options.launch)):
        return
    if options.forks or options.gpu or options.bridges or options.loops:
        return
    for cell in cells(options, scratch):
        if not options.only or cell.name in options.only:
            trained = run(partial(train_cell, cell), scratch, cell.expected, tried=cell.tried)
            yield cell.name, trained


def _clone(known: set[str]) -> Callable[[str], tuple[str, Path]]:
    """Reads OWNER/NAME=CLONE of the command line, of repositories that are known.

    Raises:
        ArgumentTypeError: one sentence, when it reads.
    """

    def named(word: str) -> tuple[str, Path]:
        name, _, clone = word.partition("=")
        if name not in known:
            raise argparse.ArgumentTypeError(f"{word}: no repository of {', '.join(sorted(known))}")
        return name, _repository(clone)

    return named


def _repository(word: str) -> Path:
    """A clone of the command line.

    Raises:
        ArgumentTypeError: one sentence.
    """
    clone = Path(word)
    if not word or not ((clone / ".git").exists() or (clone / "HEAD").is_file()):
        raise argparse.ArgumentTypeError(f"{word or 'nothing'}: no clone of a repository")
    return clone


def _python(word: str) -> str:
    """An interpreter of the command line.

    Raises:
        ArgumentTypeError: one sentence.
    """
    if shutil.which(word) is None:
        raise argparse.ArgumentTypeError(f"{word or 'nothing'}: no such program")
    return word


def _loop(word: str) -> tuple[str, str]:
    """NAME=PYTHON of the command line.

    Raises:
        ArgumentTypeError: one sentence.
    """
    name, _, python = word.partition("=")
    if name not in LOOPS:
        raise argparse.ArgumentTypeError(f"{word}: no loop of {', '.join(LOOPS)}")
    return name, _python(python)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkouts", type=_repository, help="a clone of Megatron-LM")
    parser.add_argument(
        "--launch",
        nargs="+",
        type=_clone(
            {launch_scripts.MEGATRON, *(one.repository for one in launch_scripts.LAUNCHES)}
        ),
        default=[],
        metavar="OWNER/NAME=CLONE",
        help="launch scripts of",
    )
    parser.add_argument(
        "--pythons", nargs="+", type=_python, default=[], help="interpreters for the read side"
    )
    parser.add_argument(
        "--torches", nargs="+", type=_python, default=[], help="interpreters that have torch"
    )
    parser.add_argument(
        "--bridges", nargs="+", type=_python, default=[], help="interpreters with Megatron-Bridge"
    )
    parser.add_argument(
        "--loops",
        nargs="+",
        type=_loop,
        default=[],
        metavar="NAME=PYTHON",
        help=f"interpreters with a package of {', '.join(LOOPS)}",
    )
    parser.add_argument(
        "--recorders", nargs="+", type=_python, default=[], help="interpreters with an old torch"
    )
    parser.add_argument(
        "--forks",
        nargs="+",
        type=_clone({*FORKS}),
        default=[],
        metavar="OWNER/NAME=CLONE",
        help="branches of",
    )
    parser.add_argument("--gpu", type=Path, help="results of benchmarks/megatron_features.py")
    parser.add_argument("--versions", nargs="+", default=[], metavar="NAME=VERSION")
    parser.add_argument("--only", nargs="+", metavar="CELL", help="names of cells")
    parser.add_argument("--page", action="store_true", help="write the page, run nothing")
    parser.add_argument("--scratch", type=Path, help="folder for checkouts and runs")
    options = parser.parse_args()
    if options.launch and launch_scripts.MEGATRON not in dict(options.launch):
        parser.error(f"--launch: needs a clone of {launch_scripts.MEGATRON}, which trains")
    if options.gpu and not options.gpu.is_file():
        parser.error(f"--gpu {options.gpu}: no such file")
    results = read()
    with tempfile.TemporaryDirectory() as temporary:
        unknown = set(options.only or ())
        for name, found in _found(options, options.scratch or Path(temporary)):
            unknown.discard(name)
            results[name] = found
            print(f"{name}: {word(found)}: {found.found}", flush=True)
            save(results)
    if options.gpu:
        versions = dict(word.split("=", 1) for word in options.versions)
        for name, part in json.loads(options.gpu.read_text()).items():
            said = "; ".join(last_error(one) for one in part["faults"] or part["figures"])
            works = not part["faults"]
            results[f"gpu {name}"] = Result(today(), works, said, versions)
        save(results)
    write_page(results)
    if unknown:
        parser.error(f"--only {sorted(unknown)[0]}: no such cell among those that were asked for")


if __name__ == "__main__":
    main()
