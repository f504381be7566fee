# SPDX-License-Identifier: Apache-2.0
"""`torch-trace mcp` with the client of the real SDK, over standard input and output."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import MAIN, last_line, run

pytest.importorskip("mcp.client", reason="the extra [agent] is not installed")

ROOT = Path(__file__).parents[2]
SLOW = ROOT / "tests" / "data" / "analysis" / "dp4-rank2-slow"


def session(*paths: object, calls: list[tuple[str, dict[str, Any]]]) -> tuple[list[Any], list[Any]]:
    """The tools that the server lists, and the result of each call."""
    from mcp.client import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    server = StdioServerParameters(
        command=MAIN[0],
        args=[*MAIN[1:], "mcp", *map(str, paths)],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
    )

    async def talk() -> tuple[list[Any], list[Any]]:
        async with Client(stdio_client(server)) as client:
            listed = await client.list_tools()
            return list(listed.tools), [await client.call_tool(*call) for call in calls]

    return asyncio.run(talk())


def test_an_agent_finds_the_cause_in_two_calls() -> None:
    tools, (overview, findings) = session(SLOW, calls=[("overview", {}), ("findings", {})])
    assert [tool.name for tool in tools][:2] == ["overview", "findings"]
    assert all(tool.annotations.read_only_hint for tool in tools)
    assert all(tool.description for tool in tools)
    assert not overview.is_error
    assert overview.structured_content is None
    assert json.loads(overview.content[0].text)["findings"][0].startswith(
        "1 high straggler: Rank 2"
    )
    assert json.loads(findings.content[0].text)["rows"][0]["rank"] == 2


def test_no_tool_takes_a_path_and_a_query_reads_no_other_file(tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("a\nhidden\n")
    calls: list[tuple[str, dict[str, Any]]] = [
        ("sql", {"query": f"select * from read_csv('{secret}')"}),
        ("sql", {"query": f"select * from '{secret}'"}),
        ("overview", {"path": str(secret)}),
        ("module", {"name": f"../../{secret}"}),
        ("what_if", {"changed": [f"--save {tmp_path / 'out.json'}"]}),
    ]
    tools, results = session(SLOW, calls=calls)
    for tool in tools:
        assert {*tool.input_schema["properties"]} <= {
            *("page", "rank", "name", "dimension", "changed", "query")
        }
    assert "hidden" not in str([result.content for result in results])
    assert [result.is_error for result in results if result is not results[2]] == [True] * 4
    assert [one.name for one in tmp_path.iterdir()] == ["secret.csv"]


def test_the_server_ends_with_its_input_and_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [*MAIN, "mcp", SLOW],
        input=b"",
        capture_output=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        timeout=300,
    )
    assert (done.returncode, done.stdout) == (0, b"")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("paths", [["nope"], [SLOW, "nope"]])
def test_what_cannot_be_served_is_told_before_an_agent_asks(paths: list[object]) -> None:
    done = run("mcp", *paths)
    assert done.returncode == 2
    assert last_line(done.stderr) == "torch-trace: nope: no such file or folder."
