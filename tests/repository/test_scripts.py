# SPDX-License-Identifier: Apache-2.0
"""scripts/quickstart.sh, scripts/test.sh and the environment they make: what a newcomer meets."""

from __future__ import annotations

import re
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
    for name in ("cat", "cut", "dirname", "find", "readlink", "sha256sum", "sort"):
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


FAST = "not torchrun and not slurm and not browser and not slow"
LONGEST = [
    f"tests/{name}"
    for name in (
        *("functional", "toy_trainings", "analysis", "torch_trace", "torch_profile"),
        *("torch_profile/record", "slurm", "repository", "hostile", "report", "view"),
    )
]
LEFT_OUT = {f"tests/{name}" for name in ("functional", "toy_trainings", "slurm", "hostile")}
QUICK = [name for name in LONGEST if name not in LEFT_OUT]


@pytest.mark.parametrize(
    ("given", "command"),
    [
        ([], ["scripts/side_by_side.py", *LONGEST, "tests/new"]),
        (["fast"], ["scripts/side_by_side.py", *QUICK, "tests/new", "--", "-m", FAST]),
        (["fast", "-k", "a b"], ["-m", "pytest", "-m", FAST, "-k", "a b"]),
        (["tests/new", "-x"], ["-m", "pytest", "tests/new", "-x"]),
    ],
    ids=["everything", "fast", "fast with arguments", "arguments"],
)
def test_all_tests_run_side_by_side_and_some_in_a_plain_pytest(
    checkout: Path, given: list[str], command: list[str]
) -> None:
    done = run_tests(checkout, *given, python='printf "%s\\n" "$@"\nexit 7')
    assert done.stderr == ""
    assert (done.returncode, done.stdout.splitlines()[1:]) == (7, command)


def test_the_folders_that_fast_leaves_out_have_only_tests_that_fast_leaves_out() -> None:
    marked = (SCRIPTS.parent / "tests" / "conftest.py").read_text().partition("_OF_FOLDERS = {")[2]
    assert {f"tests/{name}" for name in re.findall(r'"(\w+)": pytest', marked)} == LEFT_OUT
    script = (SCRIPTS / "test.sh").read_text()
    (left_out,) = re.findall(r'^LEFT_OUT="(.*)"$', script, re.MULTILINE)
    assert {*left_out.split()} == LEFT_OUT


def test_types_are_told_after_the_tests_and_fail_the_script(checkout: Path) -> None:
    done = run_tests(checkout, python="echo 4 passed", mypy="echo wrong types\nexit 1")
    assert (done.returncode, done.stdout.splitlines()[1:]) == (1, ["4 passed", "wrong types"])


def run_tests(checkout: Path, *given: str, **programs: str) -> subprocess.CompletedProcess[str]:
    """scripts/test.sh in a checkout in which programs of .venv are these; others do nothing."""
    (checkout / "scripts").mkdir()
    for name in ("environment.sh", "test.sh"):
        shutil.copy(SCRIPTS / name, checkout / "scripts")
    for file in (
        "slurm/test_a.py",
        "new/room/test_b.py",
        "analysis/test_c.py",
        "hostile/test_e.py",
        "data/d.json",
    ):
        (checkout / "tests" / file).parent.mkdir(parents=True)
        (checkout / "tests" / file).touch()
    folder = checkout / "other" / "bin"
    folder.mkdir(parents=True)
    for name in ("ruff", "mypy", "lint-imports", "python"):
        (folder / name).write_text(f"#!/bin/bash\n{programs.get(name, 'exit 0')}\n")
        (folder / name).chmod(0o755)
    (checkout / ".venv").symlink_to(folder.parent)
    return subprocess.run(
        ["/bin/bash", checkout / "scripts" / "test.sh", *given],
        env={"PATH": str(checkout / "bin"), "HOME": str(checkout)},
        capture_output=True,
        text=True,
    )


def test_the_vocabulary_of_quickstart_and_of_the_tools_own_words_holds_every_token() -> None:
    tool = (SCRIPTS.parent / "tools" / "prepare_text.py").read_text()
    (last,) = re.findall(r"^END_OF_DOCUMENT = (\d+)$", tool, re.MULTILINE)
    told = re.findall(r"--vocab-size (\d+)", tool + (SCRIPTS / "quickstart.sh").read_text())
    assert [int(size) for size in told] == [int(last) + 1] * 2
