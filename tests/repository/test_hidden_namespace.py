# SPDX-License-Identifier: Apache-2.0
"""Beside a Megatron whose `megatron/__init__.py` hides this package, both programs still run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WINDOW = ROOT / "tests" / "data" / "tp2pp2"
TORCH_TRACE = ("-c", "from megatron_torch_profile import torch_trace; torch_trace()")


def old_megatron(folder: Path) -> Path:
    """An old Megatron in a folder; whoever imports it fails."""
    (folder / "megatron" / "core").mkdir(parents=True, exist_ok=True)
    (folder / "megatron" / "__init__.py").write_text("raise ImportError('apex is missing')\n")
    version = "MAJOR = 0\nMINOR = 5\nPATCH = 0\n"
    (folder / "megatron" / "core" / "package_info.py").write_text(version)
    return folder


@pytest.fixture(params=["ours first", "theirs first", "in one folder"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A PYTHONPATH with both."""
    if request.param == "in one folder":
        shutil.copytree(ROOT / "megatron", tmp_path / "megatron")
        shutil.copy(ROOT / "megatron_torch_profile.py", tmp_path)
        return str(old_megatron(tmp_path))
    folders = [str(ROOT), str(old_megatron(tmp_path))]
    return ":".join(folders if request.param == "ours first" else reversed(folders))


def python(path: str, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        cwd=cwd,
        capture_output=True,
        text=True,
    )


def test_torch_trace_answers_as_it_does_without_an_old_megatron(path: str, tmp_path: Path) -> None:
    info = ("info", str(WINDOW / "rank-0.pt.trace.json.gz"))
    alone = python(str(ROOT), tmp_path, *TORCH_TRACE, *info)
    beside = python(path, tmp_path, *TORCH_TRACE, *info)
    assert (alone.returncode, alone.stderr) == (0, "")
    assert (beside.returncode, beside.stdout, beside.stderr) == (0, alone.stdout, "")


def test_processes_that_read_for_torch_trace_find_it_too(path: str, tmp_path: Path) -> None:
    code = (
        "import megatron_torch_profile; megatron_torch_profile.open_namespace()\n"
        "from megatron.torch_trace.reader.workers import Workers\n"
        "from megatron.torch_trace.wording import size\n"
        "print([result for _, result in Workers(2, size).map([1000, 2000])])"
    )
    done = python(path, tmp_path, "-c", code)
    assert (done.stderr, done.stdout) == ("", "['1 kB', '2 kB']\n")


def test_the_recorder_names_the_old_megatron(path: str, tmp_path: Path) -> None:
    script = tmp_path / "pretrain_gpt.py"
    script.touch()
    done = python(path, tmp_path, "-m", "megatron_torch_profile", str(script))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"torch-profile: error: {tmp_path}/megatron is an old Megatron (core 0.5.0, whose "
        "__init__.py hides this package); take it off PYTHONPATH and "
        "use core 0.6 or newer.\n"
    )


def test_without_an_old_megatron_the_entry_is_the_recorder_itself(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys; print(__name__, sys.argv[1:]); sys.exit(5)\n")
    done = python(str(ROOT), tmp_path, "-m", "megatron_torch_profile", str(script), "--flag")
    assert (done.returncode, done.stdout, done.stderr) == (5, "__main__ ['--flag']\n", "")
