# SPDX-License-Identifier: Apache-2.0
"""docs/questions.md leads from what people ask to what exists, and other pages lead to it."""

from __future__ import annotations

import re
from pathlib import Path

from megatron.torch_trace.analysis.findings import modules

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "questions.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and "?" in line.split("|")[1]]
OTHER_NAMES = {"export_stacks"}
"""Between backticks, of torch."""


def test_there_are_questions_with_what_to_run_and_where_the_answer_is() -> None:
    assert len(ROWS) > 24
    for row in ROWS:
        _, question, run, answer, _ = re.split(r"(?<!\\)\|", row)
        assert question.strip(), row
        assert answer.strip(), row
        assert "`torch-trace " in run or "`--torch-profile" in run, row


def test_what_is_named_as_a_finding_is_one() -> None:
    codes = {module.SLUG for module in modules()}
    # Words with `_`: the names of flags, commands, slugs and calls look otherwise.
    words = re.findall(r"`([a-z]+(?:_[a-z<>]+)+)`", PAGE)
    named = {re.sub("_(?:<dim>|dp|ep|tp)$", "", word) for word in words}
    assert named - codes - OTHER_NAMES == set()
    assert named >= {"launch_bound", "exposed_communication", "data_loader", "missing_gpu_events"}


def test_every_page_on_which_people_look_first_leads_to_the_questions() -> None:
    pages = ["README.md", "docs/2am.md", "docs/faults.md", "docs/analyze.md", "mkdocs.yml"]
    assert [name for name in pages if "questions.md" not in (ROOT / name).read_text()] == []
