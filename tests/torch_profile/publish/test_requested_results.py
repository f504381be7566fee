# SPDX-License-Identifier: Apache-2.0
"""Windows on request are told of as planned ones are."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from window_stand_ins import Program, Run, capture

from megatron.torch_profile.followers import followers
from megatron.torch_profile.plan.schedule import Window
from megatron.torch_profile.publish import window_results
from megatron.torch_profile.publish.window_results import training


def test_a_requested_window_is_told_as_a_planned_one_is_with_the_ranks_that_record_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Program.started = programs = []
    run = Run()
    monkeypatch.setattr(window_results, "Program", Program)
    monkeypatch.setattr(followers, "results", None)
    monkeypatch.setattr(
        window_results, "megatrons", lambda name: lambda: run if name == "wandb" else None
    )
    with training(capture(tmp_path), SimpleNamespace(wandb_project="p", tensorboard_dir=None)):
        results = followers.results
    assert results is not None
    results.add(Window(1, 1, 0), (1, 3))
    results.end_iteration(1, logs=False)
    (program,) = programs
    assert program.folder.name == "iter-0000001"
    assert program.command[6:9] == ["--ranks", "1", "3"]
    program.end()
    results.end_iteration(2, logs=True)
    ((step, values),) = run.logged
    assert (step, values["profile/iteration"]) == (2, 1)
    # The plan's windows come as ever; one that has not ended is not told yet.
    results.add(Window(5, 9, 0), (1,))
    results.end_iteration(5, logs=False)
    assert [one.folder.name for one in programs[1:]] == ["iter-0000003-0000004"]
    assert [*results._over] == []
    results.abandon()
