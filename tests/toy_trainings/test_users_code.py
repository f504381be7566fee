# SPDX-License-Identifier: Apache-2.0
"""What a user's own code may do inside a window: training ends as it does without us."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_runs import losses, run, steps
from trace_builder import read
from written_files import files_below

WHOLE = "iter-0000003-0000005/rank-0.pt.trace.json.gz"


@pytest.mark.parametrize(
    ("iteration", "leaves"), [("2", "sys.exit(7)"), ("4", "sys.exit(7)"), ("4", "os._exit(7)")]
)
def test_a_fork_inside_a_window_leaves_as_it_would_without_us(
    tmp_path: Path, plain: list[str], iteration: str, leaves: str
) -> None:
    fork = f"""
import os, sys
pid = os.fork()
if pid == 0: {leaves}
print("the child's status:", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    status, output = run(tmp_path, "--active", "3", "--at", iteration, fork)
    assert status == 0, output
    assert "the child's status: 7" in output
    assert losses(output) == plain, output
    assert files_below(tmp_path) == [WHOLE], "the child has written nothing"
    assert steps(tmp_path) == ["ProfilerStep#3", "ProfilerStep#4", "ProfilerStep#5"]


@pytest.mark.parametrize(
    "name", ['a"quote and $(touch here)', "back\\slash", "tab\tand 'more'", "ü"]
)
def test_a_folder_of_any_name_holds_a_trace_that_is_whole(tmp_path: Path, name: str) -> None:
    status, output = run(tmp_path / name, "--active", "3")
    assert status == 0, output
    assert files_below(tmp_path / name) == [WHOLE]
    assert steps(tmp_path / name) == ["ProfilerStep#3", "ProfilerStep#4", "ProfilerStep#5"]


@pytest.mark.parametrize("spare", [0, 1, 3])
def test_a_limit_on_open_files_costs_no_trace(tmp_path: Path, plain: list[str], spare: int) -> None:
    few = f"""
import os, resource
held = [os.dup(0) for _ in range(40)]
resource.setrlimit(resource.RLIMIT_NOFILE, (max(held) + 1 + {spare},) * 2)
"""
    status, output = run(tmp_path, "--active", "3", "--at", "4", few)
    assert (status, losses(output)) == (0, plain), output
    assert "Traceback" not in output
    assert files_below(tmp_path) == [WHOLE]
    assert steps(tmp_path) == ["ProfilerStep#3", "ProfilerStep#4", "ProfilerStep#5"]


def test_a_limit_on_the_size_of_files_leaves_the_events_that_are_whole(
    tmp_path: Path, plain: list[str]
) -> None:
    small = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000,) * 2)"
    status, output = run(tmp_path, "--active", "3", "--at", "4", small)
    assert (status, losses(output)) == (0, plain), output
    assert "could not write the trace of iterations 3-5: the trace is cut short; the" in output
    (kept,) = files_below(tmp_path)
    assert kept == "iter-0000003-0000005/rank-0.partial.pt.trace.json.gz"
    assert read(tmp_path / kept)["traceEvents"]
