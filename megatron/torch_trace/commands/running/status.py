# SPDX-License-Identifier: Apache-2.0
"""`torch-trace status`."""

from __future__ import annotations

import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from megatron.torch_trace import wording
from megatron.torch_trace.commands import options
from megatron.torch_trace.format.json_text import text_of
from megatron.torch_trace.inspect.named_ranks import NamedRank
from megatron.torch_trace.inspect.run_history import RunHistory, run_history
from megatron.torch_trace.inspect.run_state import RunState, WindowState, run_state
from megatron.torch_trace.inspect.sign_of_life import SignOfLife

_FOLLOW_SECONDS = 2.0


@click.command("status", epilog=options.exit_status(s3="", s4=""))
@options.argument("run", metavar="RUN")
@click.option("--follow", is_flag=True, help="Go on, and print what changes, until Ctrl-C.")
@options.as_json
def command(run: str, follow: bool, as_json: bool) -> None:
    """Show the plan of a run, whether it has ended, its windows, and what the monitor sees.

    \b
    torch-trace status traces/20261128-173012
    torch-trace status traces/20261128-173012 --follow

    RUN is the folder of the run. Answers to its requests are shown, too. Only names of files and
    small files are read, so this costs a training nothing.
    """
    shown: list[str] = []
    while True:
        state = run_state(Path(run))
        lines = (
            [text_of(_document(state, run_history(Path(run))))]
            if as_json
            else _lines(state, follow=follow)
        )
        for line in lines:
            if line not in shown:
                click.echo(line if as_json else wording.visible(line))
        sys.stdout.flush()
        if not follow:
            return
        shown = lines
        time.sleep(_FOLLOW_SECONDS)


def _lines(state: RunState, *, follow: bool) -> list[str]:
    lines = [_plan(state.plan), _training(state.life, follow=follow)]
    lines += [_window(window) for window in state.windows] or ["windows: none yet"]
    for name, answer in state.requested:
        said = f"{answer.state}: {answer.sentence}" if answer else "no answer yet"
        lines.append(f"request {name}: {said}")
    if state.monitor:
        lines.append(_monitor(state.monitor))
    for one in state.named:
        lines.append(f"{_about(one)}: {one.sentence}")
    if state.hung:
        ranks = _named(tuple(state.hung))
        lines.append(f"hang: records of {ranks}, the last in iteration {max(state.hung.values())}")
    return lines


def _training(life: SignOfLife | None, *, follow: bool) -> str:
    """`training: unknown whether it has ended; last sign of life 14 min ago: metrics.jsonl`.

    With `--follow` only whether it has ended: each sign would be another line.
    """
    has_ended = life is not None and life.has_ended
    said = f"training: {'has ended' if has_ended else 'unknown whether it has ended'}"
    if life is not None and life.error:
        said += f" with {life.error}"
    if life is None or follow:
        return said
    logged = ""
    if life.iteration is not None:
        of = "" if life.last_iteration is None else f" of {life.last_iteration:,}"
        logged = f", iteration {life.iteration:,}{of}"
    return f"{said}; last sign of life {_ago(life.at_s)}: {life.file}{logged}"


def _ago(at_s: float) -> str:
    """`8 s ago`, `14 min ago`, `3 h ago`, `2 days ago`; clocks of file servers may be ahead."""
    age = max(0.0, time.time() - at_s)
    for unit, scale in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if age >= 2 * scale:
            return f"{age / scale:,.0f} {unit} ago"
    return f"{age:.0f} s ago"


def _monitor(numbers: dict[str, float]) -> str:
    """`monitor, iteration 850: 640 ms an iteration; slowest rank 5, by 41.2 ms (forward)`."""
    try:
        said = f"monitor, iteration {numbers['monitor/iteration']:.0f}: "
        said += f"{wording.duration(numbers['monitor/iteration_ms'] * 1e6)} an iteration"
        by = numbers.get("monitor/slowest_by_ms", 0.0)
        if by > 0:
            parts = {k: v for k, v in numbers.items() if k.startswith("monitor/slowest_by_ms/")}
            where = max(parts, key=parts.__getitem__).rpartition("/")[2] if parts else ""
            said += f"; slowest rank {numbers['monitor/slowest_rank']:.0f}, by "
            said += wording.duration(by * 1e6)
            said += f" ({wording.part_of_iteration(where)})" if where else ""
    except KeyError:
        return "monitor: its last line is not whole"
    return said


def _about(one: NamedRank) -> str:
    if one.first is None or one.last is None:
        return "monitor"
    return f"monitor, {wording.iterations(_iterations(one.first, one.last))}"


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


def _document(state: RunState, history: RunHistory) -> dict[str, Any]:
    return {
        "schema": 1,
        "plan": state.plan,
        "training": _training_in_json(state.life),
        "windows": [
            {"folder": w.name, "recorded_ranks": list(w.recorded), "writing_ranks": list(w.writing)}
            for w in state.windows
        ],
        "requests": [
            {"request": name, "answer": answer.fields if answer else None}
            for name, answer in state.requested
        ],
        "monitor": state.monitor or None,
        "hang_records": [
            {"rank": rank, "iteration": iteration} for rank, iteration in state.hung.items()
        ],
        "events": [
            {
                "kind": one.kind,
                "first": one.first,
                "last": one.last,
                "says": one.sentence,
                "run": one.launch,
            }
            for one in history.events
        ],
    }


def _training_in_json(life: SignOfLife | None) -> dict[str, Any] | None:
    if life is None:
        return None
    at = datetime.fromtimestamp(life.at_s).astimezone()
    return {
        "has_ended": life.has_ended,
        "last_sign": at.isoformat(timespec="seconds"),
        "last_file": life.file,
        "iteration": life.iteration,
        "last_iteration": life.last_iteration,
        "error": life.error,
    }
