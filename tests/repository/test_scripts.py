# SPDX-License-Identifier: Apache-2.0
"""scripts/quickstart.sh and the environment it makes: what a newcomer meets first."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder that looks like a checkout, with programs beside it, and no Python among them."""
    for name in ("pyproject.toml", "setup.py"):
        (tmp_path / name).write_text("")
    (tmp_path / "bin").mkdir()
    for name in ("cat", "sha256sum", "readlink"):
        program = shutil.which(name)
        assert program
        (tmp_path / "bin" / name).symlink_to(program)
    return tmp_path


def install(checkout: Path) -> subprocess.CompletedProcess[str]:
    script = f"set -euo pipefail; source {SCRIPTS}/environment.sh; install_into_venv dev"
    return subprocess.run(
        ["/bin/bash", "-c", f'{script}; echo "$PYTHONPATH"'],
        cwd=checkout,
        env={"PATH": str(checkout / "bin"), "HOME": str(checkout)},
        capture_output=True,
        text=True,
    )


def test_without_a_python_one_sentence_says_what_to_install(checkout: Path) -> None:
    done = install(checkout)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("No Python 3.12 or newer found")
    assert done.stderr.count("\n") == 1


def test_an_environment_of_another_checkout_is_used_and_not_turned_to_this_one(
    checkout: Path,
) -> None:
    other = checkout / "other"
    (other / "bin").mkdir(parents=True)
    python = other / "bin" / "python"
    python.write_text("#!/bin/bash\necho installed >>installed\n")
    python.chmod(0o755)
    (checkout / ".venv").symlink_to(other)
    done = install(checkout)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == str(checkout)
    assert not (checkout / "installed").exists()


def test_quickstart_says_how_it_is_called() -> None:
    done = subprocess.run(
        [SCRIPTS / "quickstart.sh", "--help"], capture_output=True, text=True, check=True
    )
    first, *_, last = done.stdout.strip().splitlines()
    assert first.startswith("Install, train a small GPT")
    assert last == "Everything it makes lies in .venv/ and quickstart/."
