# SPDX-License-Identifier: Apache-2.0
"""`torch-trace status`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from megatron.torch_trace import wording
from megatron.torch_trace.commands import options
from megatron.torch_trace.inspect.run_state import RunState, WindowState, run_state


@click.command("status", epilog=options.exit_status(s3="", s4=""))
@click.argument("run", metavar="RUN")
@options.as_json
def command(run: str, as_json: bool) -> None:
    """Show the plan of a run, its windows and the answers to its requests.

    \b
    torch-trace status traces/20261128-173012

    RUN is the folder of the run. Only names of files and small files are read, so this costs a
    training nothing.
    """
    state = run_state(Path(run))
    if as_json:
        click.echo(json.dumps(_document(state)))
        return
    for line in _lines(state):
        click.echo(wording.visible(line))


def _lines(state: RunState) -> list[str]:
    lines = [_plan(state.plan)]
    lines += [_window(window) for window in state.windows] or ["windows: none yet"]
    for name, answer in state.requested:
        said = f"{answer.state}: {answer.sentence}" if answer else "no answer yet"
        lines.append(f"request {name}: {said}")
    return lines


def _plan(plan: dict[str, Any] | None) -> str:
    try:
        assert plan is not None
        ranks = _named(tuple(plan["ranks"]))
        windows = [_iterations(one["first"], one["last"]) for one in plan["windows"][:5]]
        more = ", ..." if len(plan["windows"]) > 5 else ""
    except (AssertionError, KeyError, TypeError, ValueError):
        return "plan: unknown, because run.json is not there or not whole"
    shown = ", ".join(windows)
    what = wording.iterations(f"{shown}{more}") if windows else "no iterations"
    return f"plan: {ranks}; {what}"


def _window(window: WindowState) -> str:
    facts = []
    if window.recorded:
        traces = "trace" if len(window.recorded) == 1 else "traces"
        facts.append(f"{traces} of {_named(window.recorded)}")
    if window.writing:
        one = len(window.writing) == 1
        verbs = "writes, or was ended while it wrote" if one else "write, or were ended meanwhile"
        facts.append(f"{_named(window.writing)} {verbs}")
    return f"window {window.name}: {'; '.join(facts) or 'no trace yet'}"


def _named(ranks: tuple[int, ...]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {wording.ranks(ranks)}"


def _iterations(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first}-{last}"


def _document(state: RunState) -> dict[str, Any]:
    return {
        "schema": 1,
        "plan": state.plan,
        "windows": [
            {"folder": w.name, "recorded_ranks": list(w.recorded), "writing_ranks": list(w.writing)}
            for w in state.windows
        ],
        "requests": [
            {"request": name, "answer": answer.fields if answer else None}
            for name, answer in state.requested
        ],
    }
