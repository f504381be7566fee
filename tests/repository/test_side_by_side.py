# SPDX-License-Identifier: Apache-2.0
"""scripts/side_by_side.py: whatever befalls the tests of a folder, the run ends, and says it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "side_by_side.py"
ALONE = ["-c", "pytest.ini", "-p", "no:cacheprovider"]
ENVIRONMENT = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""With these, pytest knows nothing of this repository, and begins sooner."""


def folder(root: Path, name: str, test: str) -> None:
    (root / name).mkdir()
    (root / "pytest.ini").write_text("[pytest]\n")
    (root / name / f"test_{name}.py").write_text(f"import os, time\ndef test_it():\n    {test}\n")


def command(*words: str) -> list[str]:
    return [sys.executable, str(SCRIPT), *words, "--", *ALONE]


def run(root: Path, *words: str) -> tuple[int, str]:
    """Status and output, in which durations are a bare `s`."""
    done = subprocess.run(
        command(*words), cwd=root, env=ENVIRONMENT, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=500,
    )  # fmt: skip
    return done.returncode, re.sub(r" +[\d.]+ ?s\b", " s", done.stdout)


def summary(output: str) -> list[list[str]]:
    """The lines at the end: folder, and what is said of it."""
    return [re.split(r" s  ", line) for line in output.splitlines() if " s  " in line]


def test_what_pytest_says_of_each_folder_is_printed_whole_and_once_more_in_a_line(
    tmp_path: Path,
) -> None:
    folder(tmp_path, "good", "print('not shown')")
    folder(tmp_path, "bad", "assert 1 == 2")
    status, output = run(tmp_path, "bad", "good", "--at-once", "2")
    assert status == 1
    assert summary(output) == [["good", "1 passed in s"], ["bad", "FAILED: 1 failed in s"]]
    assert "E       assert 1 == 2" in output
    assert "not shown" not in output


def test_all_folders_passed_is_status_0_and_so_is_a_folder_without_tests_of_this_kind(
    tmp_path: Path,
) -> None:
    folder(tmp_path, "good", "pass")
    (tmp_path / "empty").mkdir()
    status, output = run(tmp_path, "good", "empty", "--at-once", "1")
    said = [["good", "1 passed in s"], ["empty", "no tests ran in s"]]
    assert (status, summary(output)) == (0, said)


def test_a_folder_in_another_one_is_tested_once_and_apart(tmp_path: Path) -> None:
    folder(tmp_path, "all", "pass")
    folder(tmp_path / "all", "long", "pass")
    status, output = run(tmp_path, "all/long", "all", "--at-once", "1")
    assert (status, summary(output)) == (
        0,
        [["all/long", "1 passed in s"], ["all", "1 passed in s"]],
    )


def test_what_is_said_below_pytests_last_line_is_no_failure(tmp_path: Path) -> None:
    late = "import atexit; [atexit.register(os.write, 2, b'an export ended\\n') for _ in range(99)]"
    folder(tmp_path, "late", late)
    status, output = run(tmp_path, "late")
    assert (status, summary(output)) == (0, [["late", "1 passed in s"]])
    assert "an export ended" in output.partition("1 passed")[2]


def test_each_folder_has_a_folder_of_its_own_for_temporary_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        folder(tmp_path, name, "open(os.environ['PYTEST_DEBUG_TEMPROOT'] + '/it', 'x')")
    root = tmp_path / "temporary"
    root.mkdir()
    ended = subprocess.run(
        command("one", "two"), cwd=tmp_path, env={**ENVIRONMENT, "TMPDIR": str(root)}
    )
    assert ended.returncode == 0
    assert len(list(root.glob("*/it"))) == 2


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("os.kill(os.getpid(), 9)", "DIED of SIGKILL"),
        ("os._exit(0)", "ENDED EARLY"),
        ("os._exit(3)", "FAILED"),
        ("os.fork() or time.sleep(1000); os._exit(0)", "ENDED EARLY"),
    ],
)
def test_a_process_that_dies_is_a_failure_and_the_other_folders_go_on(
    tmp_path: Path, does: str, said: str
) -> None:
    folder(tmp_path, "dies", does)
    folder(tmp_path, "good", "pass")
    status, output = run(tmp_path, "dies", "good", "--at-once", "1")
    good, dies = summary(output)
    assert (status, good) == (1, ["good", "1 passed in s"])
    assert dies[0] == "dies"
    assert dies[1].startswith(said)


def test_a_process_that_hangs_is_ended_with_all_that_it_started_and_says_where_it_was(
    tmp_path: Path,
) -> None:
    folder(tmp_path, "hangs", f"os.system('sleep {LONG}')")
    folder(tmp_path, "good", "pass")
    # A machine that has other work needs longer until the tests begin.
    for seconds in ("5", "60"):
        status, output = run(tmp_path, "hangs", "good", "--at-once", "2", "--seconds", seconds)
        good, hangs = summary(output)
        if "NOT DONE" not in good[1] and "test_hangs.py" in output:
            break
    assert (status, good) == (1, ["good", "1 passed in s"])
    assert hangs[0] == "hangs"
    assert hangs[1].startswith("NOT DONE after s")
    assert "test_hangs.py" in output.partition("most recent call first")[2]
    assert not lives_on(LONG)


LONG = f"9{os.getpid():07}"
"""Seconds that no other run of these tests on this machine sleeps."""


def lives_on(word: str) -> bool:
    """Whether it is still there when what was killed has had time to go."""
    until = time.monotonic() + 60
    look = ["pgrep", "-f", f"^sleep {word}"]
    while lives := subprocess.run(look, capture_output=True).returncode == 0:
        if time.monotonic() > until:
            break
        time.sleep(0.05)
    return lives


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_stops_the_run_leaves_nothing_running(tmp_path: Path, number: signal.Signals) -> None:
    folder(tmp_path, "long", f"open('begun', 'w'); os.system('sleep {LONG}')")
    folder(tmp_path, "later", "open('late', 'w')")
    process = subprocess.Popen(
        command("long", "later", "--at-once", "1"), cwd=tmp_path, env=ENVIRONMENT
    )
    until = time.monotonic() + 300
    while not (tmp_path / "begun").exists() and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(300) == 130
    assert not lives_on(LONG)
    assert not (tmp_path / "late").exists()


def test_test_modules_have_names_of_their_own_so_that_one_process_can_run_them_all() -> None:
    names = Counter(path.name for path in Path(__file__).parents[1].rglob("test_*.py"))
    assert [name for name, times in names.items() if times > 1] == []
