# SPDX-License-Identifier: Apache-2.0
"""Commands that are stopped, or lose what they work with, at chosen moments: nothing half is left.

What is tried: each command at its middle and last moments under Ctrl-C, SIGTERM, a closed terminal
and SIGKILL; with its input cut, grown or gone, and its output's folder gone, meanwhile.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from interrupted_runs import Ended, run, unfinished

from megatron.torch_trace.commands.terminal import interruption

DATA = Path(__file__).parents[1] / "data" / "tp2pp2-spans"
STATUS = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129, "SIGKILL": -9}
Arguments = list[object]


class Sandbox:
    """A run with one window of two ranks, and a folder for what commands write."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.window = root / "20260101-000000" / "iter-0000006"
        self.out = root / "out"
        self.window.mkdir(parents=True)
        self.out.mkdir()
        for rank in (0, 1):
            shutil.copy(DATA / f"rank-{rank}.pt.trace.json.gz", self.window)
        self.trace = self.window / "rank-0.pt.trace.json.gz"

    def names(self) -> set[str]:
        """All files and folders, relative."""
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*")}


def recovered(box: Sandbox) -> Arguments:
    left = box.window / f"{box.trace.name}.4242.json.tmp"
    if not left.exists():
        box.trace.rename(left)
        os.utime(left, (0, 0))
    return ["recover", box.window]


COMMANDS: dict[str, Callable[[Sandbox], Arguments]] = {
    "analyze": lambda box: ["analyze", box.window, "-j", 2],
    "keep": lambda box: ["analyze", "--partials", box.window, "-j", 2],
    "compare": lambda box: [
        "compare", box.trace, box.window / "rank-1.pt.trace.json.gz",
        "-o", box.out / "page.html",
    ],
    "convert": lambda box: ["convert", box.window, "-j", 2, "-o", box.out / "all.pftrace.gz"],
    "decompress": lambda box: ["decompress", box.window],
    "export": lambda box: ["export", box.window, "-j", 2, "-o", box.out / "tables"],
    "merge": lambda box: ["merge", box.window, "-o", box.out / "all.json.gz"],
    "recover": recovered,
    "report": lambda box: ["report", box.window, "-j", 2, "-o", box.out / "page.html"],
    "slim": lambda box: [
        "slim", box.trace, "--preset", "perfetto", "-o", box.out / "slim.json.gz",
    ],
}  # fmt: skip


@pytest.fixture(params=sorted(COMMANDS))
def command(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def sandboxes(root: Path) -> Callable[[], Sandbox]:
    number = iter(range(1000))
    return lambda: Sandbox(root / str(next(number)))


def is_clean(ended: Ended) -> bool:
    return "Traceback" not in ended.stderr and not ended.children


@cache
def undisturbed(name: str) -> tuple[Ended, frozenset[str], Path]:
    """How a command ends by itself, what is there then, and the trace that it read."""
    with TemporaryDirectory() as folder:
        box = Sandbox(Path(folder).resolve())
        ended = run(COMMANDS[name](box), box.root)
        assert unfinished(box.root) == []
        return ended, frozenset(box.names()), box.trace


def test_a_command_that_is_stopped_leaves_only_what_is_whole(tmp_path: Path, command: str) -> None:
    fresh = sandboxes(tmp_path)
    ended, whole, _ = undisturbed(command)
    assert ended.status == 0, ended.stderr
    assert is_clean(ended)
    last = len(ended.events)
    middle = (last + 1) // 2
    kinds = ["SIGINT", "SIGTERM", "SIGHUP"]
    first = sorted(COMMANDS).index(command)
    for moment, what in (
        (middle, kinds[first % 3]),
        (last, kinds[(first + 1) % 3]),
        (middle, "SIGKILL"),
    ):
        box = fresh()
        arguments = COMMANDS[command](box)
        before = box.names()
        ended = run(arguments, box.root, moment=moment, what=what)
        assert ended.status == STATUS[what], (moment, what, ended)
        assert is_clean(ended), (moment, what, ended)
        if what != "SIGKILL":
            assert interruption.STOPPED in ended.stderr
            assert set(unfinished(box.root)) <= before
        new = {name for name in box.names() - before if ".tmp" not in name}
        assert new <= whole, (moment, what)


@pytest.mark.parametrize("what", ["truncate", "grow", "remove"])
def test_input_that_changes_while_it_is_read_ends_in_a_sentence(
    tmp_path: Path, command: str, what: str
) -> None:
    box = sandboxes(tmp_path)()
    arguments = COMMANDS[command](box)
    before, read = unfinished(box.root), undisturbed(command)[2].name
    opened = [
        number
        for number, event in enumerate(undisturbed(command)[0].events, start=1)
        if event.startswith("open") and read in event
    ]
    # The last reading: what an earlier one has found is no longer true.
    moment = opened[-1] if opened else 1
    target = box.trace if box.trace.exists() else box.root / before[0]
    ended = run(arguments, box.root, moment=moment, what=what, target=target)
    assert ended.status in (0, 1, 2, 3), ended
    assert is_clean(ended), ended
    assert set(unfinished(box.root)) <= set(before)


def test_a_folder_that_is_removed_under_a_command_ends_in_a_sentence(
    tmp_path: Path, command: str
) -> None:
    box = sandboxes(tmp_path)()
    arguments = COMMANDS[command](box)
    gone = box.out if str(box.out) in " ".join(map(str, arguments)) else box.window
    moment = (len(undisturbed(command)[0].events) + 1) // 2
    ended = run(arguments, box.root, moment=moment, what="remove", target=gone)
    assert ended.status in (0, 1, 2, 3), ended
    assert is_clean(ended), ended
    assert unfinished(box.root) == []
