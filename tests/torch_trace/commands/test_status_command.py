# SPDX-License-Identifier: Apache-2.0
"""`torch-trace status`: the plan of a run, its windows and its requests, in words."""

from __future__ import annotations

import json
from pathlib import Path

from command_line import run


def window(folder: Path, name: str, *files: str) -> None:
    (folder / name).mkdir()
    for file in files:
        (folder / name / file).touch()


def test_a_run_in_words(tmp_path: Path) -> None:
    folder = tmp_path / "20261128-205911"
    (folder / "requests").mkdir(parents=True)
    plan = {"ranks": [0, 1], "windows": [{"first": 10, "last": 11}, {"first": 20, "last": 20}]}
    (folder / "run.json").write_text(json.dumps({"plan": plan}))
    window(folder, "iter-0000010", *(f"rank-{rank}.pt.trace.json.gz" for rank in (0, 1)))
    window(folder, "iter-0000020", "rank-1.pt.trace.json.gz", "rank-0.pt.trace.json.gz.5.json.tmp")
    window(folder, "iter-0000030")
    for name in ("a", "b"):
        (folder / "requests" / f"{name}.json").write_text("{}")
    answer = {"schema": 1, "request": "a", "state": "done", "says": "recorded iteration 30."}
    (folder / "requests" / "a.answer.json").write_text(json.dumps(answer))
    assert run("status", folder).stdout.decode().splitlines() == [
        "plan: ranks 0-1; iterations 10-11, 20",
        "window iter-0000010: traces of ranks 0-1",
        "window iter-0000020: trace of rank 1; rank 0 writes, or was ended while it wrote",
        "window iter-0000030: no trace yet",
        "request a: done: recorded iteration 30.",
        "request b: no answer yet",
    ]


def test_one_rank_and_one_iteration_are_not_many(tmp_path: Path) -> None:
    plan = {"ranks": [3], "windows": [{"first": 400, "last": 400}]}
    (tmp_path / "run.json").write_text(json.dumps({"plan": plan}))
    assert run("status", tmp_path).stdout.decode().splitlines() == [
        "plan: rank 3; iteration 400",
        "windows: none yet",
    ]
