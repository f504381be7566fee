# SPDX-License-Identifier: Apache-2.0
"""The traces that examples/traces gives to try: each command runs, and each cause is named."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from command_line import output

ROOT = Path(__file__).parents[2]
TRACES = ROOT / "examples" / "traces"
README = (TRACES / "README.md").read_text()
COMMANDS = re.findall(r"^    torch-trace (.*)$", README, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_its_page_runs(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if command.startswith("view"):
        assert Path(ROOT, command.split()[1]).is_dir(), "it would serve until Ctrl-C"
        return
    monkeypatch.chdir(tmp_path)
    Path("examples").symlink_to(ROOT / "examples")
    output(*shlex.split(command))


@pytest.mark.parametrize(
    ("window", "begin", "where"),
    [
        (
            "iter-0000078-0000080",
            "straggler: Rank 1 arrives last in 100 % of the data-parallel reduce-scatters.",
            "takes 40.4 ms longer than its peers, in 1 stretch of `backward micro-batch 1`.",
        ),
        (
            "iter-0000114-0000116",
            "data_loader: On rank 0 the training loop spends 62 % of the iteration waiting for",
            "takes 80.7 ms longer than its peers, in 1 stretch of `forward micro-batch 0`.",
        ),
    ],
)
def test_the_first_finding_names_the_rank_and_what_it_does(
    window: str, begin: str, where: str
) -> None:
    lines = output("analyze", TRACES / "late-ranks" / window).splitlines()
    findings = " ".join(" ".join(lines[lines.index("FINDINGS") + 1 :]).split())
    assert findings.startswith(f"!!! finding {begin}")
    assert where in findings.partition("!!! finding launch_bound")[0]
