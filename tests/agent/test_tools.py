# SPDX-License-Identifier: Apache-2.0
"""The tools of `torch-trace mcp`: what an agent is told is what the commands say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megatron import torch_trace
from megatron.torch_trace.agent.pages import MOST_CHARACTERS
from megatron.torch_trace.agent.questions import Questions
from megatron.torch_trace.agent.recording import Recording
from megatron.torch_trace.agent.server import tools
from megatron.torch_trace.errors import TorchTraceError, UsageError

ROOT = Path(__file__).parents[2]
SLOW = ROOT / "tests" / "data" / "analysis" / "dp4-rank2-slow"
SPANS = ROOT / "tests" / "data" / "pp2-recompute-spans"
Tool = Callable[..., str]


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tool]:
    return named(SLOW, tmp_path_factory.mktemp("slow"))


@pytest.fixture(scope="module")
def spans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tool]:
    return named(SPANS, tmp_path_factory.mktemp("spans"), Recording(SPANS))


def named(path: Path, folder: Path, other: Recording | None = None) -> dict[str, Tool]:
    found = tools(Recording(path), other, Questions(path, folder))
    return {tool.__name__: tool for tool in found}


def asked(tool: Tool, *arguments: object) -> dict[str, Any]:
    """All pages as one answer."""
    text = tool(*arguments)
    assert len(text) <= MOST_CHARACTERS
    found: dict[str, Any] = json.loads(text)
    for page in range(2, found.get("pages", 1) + 1):
        more = tool(*arguments, page)
        assert len(more) <= MOST_CHARACTERS
        found["rows"] += json.loads(more)["rows"]
    return found


def test_the_tools_are_those_of_the_document(slow: dict[str, Tool]) -> None:
    text = (ROOT / "docs" / "agents.md").read_text()
    assert [name for name in slow if f"| `{name}` |" not in text] == []
    assert [*slow] == [
        *("overview", "findings", "critical_path", "rank", "module", "collective", "what_if"),
        *("compare", "sql"),
    ]


def test_the_overview_begins_with_the_answer_and_has_a_row_a_rank(slow: dict[str, Tool]) -> None:
    found = asked(slow["overview"])
    analysis = torch_trace.analyze(SLOW, gains=True)
    assert "possible gain: 48.2 ms without `straggler`" in found["answer"]
    assert [line.split(":")[0] for line in found["findings"]] == [
        f"{number} {one.severity} {one.code}" for number, one in enumerate(analysis.findings, 1)
    ]
    assert [row["rank"] for row in found["rows"]] == [0, 1, 2, 3]
    steps = [one.window_ns / len(one.steps) / 1e6 for one in analysis.ranks]
    assert [row["step_ms"] for row in found["rows"]] == pytest.approx(steps, abs=1e-6)


def test_a_finding_has_gain_advice_and_where_to_look(slow: dict[str, Tool]) -> None:
    first = asked(slow["findings"])["rows"][0]
    straggler = torch_trace.analyze(SLOW, gains=True).findings[0]
    assert (first["code"], first["rank"], first["step"]) == ("straggler", 2, 6)
    assert first["gain_ms"] == pytest.approx((straggler.gain_ns or 0) / 1e6, abs=1e-6)
    assert (first["advice"], first["change"]) == (straggler.advice, "--rank 2=median")
    assert straggler.example is not None
    assert first["start_ns"] == straggler.example[1].start_ns


def test_what_if_answers_as_the_command_does(slow: dict[str, Tool]) -> None:
    found = asked(slow["what_if"], ["--rank 2=median"])
    answer = torch_trace.whatif(SLOW, "--rank 2=median")
    assert found["simulated_step_ms"] == pytest.approx(answer.simulated_ns / 1e6, abs=1e-6)
    assert found["error_ms"] == pytest.approx(answer.error_ns / 1e6, abs=1e-6)
    path = [row["ms"] for row in found["rows"] if "on_path_rank" in row]
    assert path == pytest.approx([one.time_ns / 1e6 for one in answer.critical_path], abs=1e-6)
    assert asked(slow["what_if"], []) == asked(slow["critical_path"])


def test_a_rank_a_collective_and_a_module_have_their_own_answers(
    slow: dict[str, Tool], spans: dict[str, Tool]
) -> None:
    rank = asked(slow["rank"], 2)
    assert rank["idle_by_cause_ms"]["cpu"] > 200
    assert {"step", "start_ns", "step_ms"} <= rank["rows"][0].keys()
    dp = asked(slow["collective"], "dp")
    worst = max(dp["rows"], key=lambda row: row.get("others_wait_ms", 0))
    assert (worst["last_to_arrive"], worst["collective"]) == (2, "reduce_scatter")
    modules = asked(spans["module"], "MLP")
    expected = {
        (one.rank, row.module): row.total_ns / 1e6
        for one in torch_trace.analyze(SPANS).ranks
        for row in one.modules
        if row.type == "MLP"
    }
    assert {(r["rank"], r["module"]): r["total_ms"] for r in modules["rows"]} == pytest.approx(
        expected, abs=1e-6
    )


def test_two_windows_are_compared_where_the_server_was_started_for_two(
    slow: dict[str, Tool], spans: dict[str, Tool]
) -> None:
    iteration = asked(spans["compare"])["rows"][0]
    assert (iteration["what"], iteration["change_ms"]) == ("iteration", 0)
    with pytest.raises(UsageError, match="start it as torch-trace mcp PATH OTHER"):
        slow["compare"]()


def test_sql_answers_names_its_tables_and_is_ended_when_it_takes_too_long(
    slow: dict[str, Tool], tmp_path: Path
) -> None:
    found = asked(slow["sql"], "select rank, step from steps order by rank")
    assert found == {
        "columns": ["rank", "step"],
        "rows": [[0, 6], [1, 6], [2, 6], [3, 6]],
        "page": 1,
        "pages": 1,
    }
    assert [row["table"] for row in asked(slow["sql"], "")["rows"]][:2] == ["ranks", "steps"]
    asked(slow["sql"], "select name from kernels order by start_ns limit 100")
    with pytest.raises(UsageError, match="did you mean name"):
        slow["sql"]("select nam from kernels")
    hurried = Questions(SLOW, tmp_path, seconds=1e-9)  # over before anybody can answer
    with pytest.raises(TorchTraceError, match=r"the query was ended after 1 ns; ask for less"):
        hurried.ask("select 1", 1)


@pytest.mark.parametrize(
    ("tool", "arguments", "sentence"),
    [
        ("rank", [9], "rank 9: there is no trace of this rank; there are 0, 1, 2, 3."),
        ("rank", [-1], "rank -1: there is no trace of this rank"),
        ("module", ["x"], "x: the traces tell of no modules; record with --torch-profile-spans"),
        ("collective", ["../.."], "../..: no such dimension here; there are d"),
        ("what_if", [["--save /x"]], "--save"),
        ("what_if", [["/etc/passwd"]], "/etc/passwd"),
        ("what_if", [["--rank 2=median"] * 9], "9 changes: ask for at most 8 at a time."),
        ("sql", ["drop table ranks"], "DROP: is no query; begin with SELECT or WITH"),
        ("sql", ["select * from read_csv('/etc/passwd')"], "read_csv: would read a file"),
        ("sql", ["select * from '/etc/passwd'"], "/etc/passwd: no such table; there are"),
        ("sql", ["--list"], "the query is empty"),
        ("sql", ["select 1", 2], "page 2: there are 1 pages; ask for 1 to 1."),
        ("overview", [7], "page 7: there are 1 pages; ask for 1 to 1."),
    ],
)
def test_what_cannot_be_answered_is_a_sentence_and_reads_no_other_file(
    slow: dict[str, Tool], tool: str, arguments: list[object], sentence: str
) -> None:
    with pytest.raises(UsageError) as error:
        slow[tool](*arguments)
    assert str(error.value).startswith(sentence)
