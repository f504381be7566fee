# SPDX-License-Identifier: Apache-2.0
"""A file under its name is whole, and what is unfinished goes with the process."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from megatron.torch_trace.files.atomic import atomic_path, working_folder
from megatron.torch_trace.system import leftovers


def test_a_file_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "table.json"
    with atomic_path(target) as unfinished:
        unfinished.write_text("half")
        assert not target.exists()
        unfinished.write_text("whole")
    assert target.read_text() == "whole"
    assert list(tmp_path.iterdir()) == [target]


def test_an_error_leaves_neither_the_file_nor_its_beginning(tmp_path: Path) -> None:
    with suppress(ZeroDivisionError), atomic_path(tmp_path / "a") as unfinished:
        unfinished.write_text("half")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_appears_meanwhile_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def refuse(*paths: object) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    target = tmp_path / "a"

    def write_late() -> None:
        with atomic_path(target, replace=False) as unfinished:
            unfinished.write_text("mine")
            target.write_text("somebody's")

    with pytest.raises(FileExistsError):
        write_late()
    assert target.read_text() == "somebody's"
    with atomic_path(tmp_path / "b", replace=False) as unfinished:
        unfinished.write_text("mine")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_the_longest_name_that_a_disk_allows_can_be_written(tmp_path: Path) -> None:
    target = tmp_path / ("ä" * 127)
    with atomic_path(target) as unfinished:
        unfinished.write_text("whole")
    with working_folder(target) as folder:
        (folder / "part").write_text("half")
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_that_is_removed_meanwhile_is_an_error_and_no_hang(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()

    def write_without_a_folder() -> None:
        with atomic_path(folder / "a") as unfinished:
            unfinished.write_text("half")
            unfinished.unlink()
            folder.rmdir()

    with pytest.raises(FileNotFoundError):
        write_without_a_folder()


def test_what_is_noted_goes_and_a_forked_child_leaves_it(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from megatron.torch_trace.files.atomic import atomic_path, working_folder\n"
        "from megatron.torch_trace.system import leftovers\n"
        "with atomic_path(Path('a')) as a, working_folder(Path('b')) as b:\n"
        "    a.write_text('half'); (b / 'part').write_text('half')\n"
        "    if os.fork() == 0:\n"
        "        leftovers.clear(); os._exit(0)\n"
        "    os.wait()\n"
        "    print(len(os.listdir('.')))\n"
        "    leftovers.clear()\n"
        "    print(len(os.listdir('.')))\n"
        "    sys.stdout.flush()\n"
        "    os._exit(0)\n"
    )
    root = Path(__file__).parents[3]
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.split() == ["2", "0"]


def test_nothing_is_noted_once_the_work_is_done(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "a") as unfinished:
        unfinished.write_text("")
    assert unfinished not in leftovers._paths
