# SPDX-License-Identifier: Apache-2.0
"""What a user's own code may do inside a window: training ends as it does without us."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_runs import losses, run, steps, traces

WHOLE = "iter-0000003-0000005/rank-0.pt.trace.json.gz"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Losses of the toy when nobody profiles."""
    status, output = run(tmp_path_factory.mktemp("plain"), "--unprofiled")
    assert status == 0, output
    return losses(output)


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
    assert losses(output) == plain
    assert traces(tmp_path) == [WHOLE], "the child has written nothing"
    assert steps(tmp_path) == ["ProfilerStep#3", "ProfilerStep#4", "ProfilerStep#5"]
