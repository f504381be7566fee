# SPDX-License-Identifier: Apache-2.0
"""Traces as a W&B artifact: what is too large, and a run that ends."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from window_stand_ins import Run

from megatron.torch_profile.publish import wandb_artifacts
from megatron.torch_profile.publish.wandb_artifacts import TraceArtifacts, within_limits


def test_what_is_too_large_for_an_artifact_is_named_and_left_out(
    tmp_path: Path, warned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wandb_artifacts, "MB", 1)
    monkeypatch.setattr(wandb_artifacts, "MOST_MB", 5)
    monkeypatch.setattr(wandb_artifacts, "MOST_MB_TOTAL", 10)
    files = []
    for index, size in enumerate([4, 6, 5, 4, 1]):
        files.append(tmp_path / f"rank-{index}")
        files[-1].write_bytes(b"x" * size)
    assert within_limits(files) == [files[0], files[2], files[4]]
    run = Run()
    artifacts = TraceArtifacts(lambda: run)
    artifacts.begin("iter-0000003", files)
    artifacts.begin("iter-0000004", files[1:2])
    while artifacts.busy:
        time.sleep(0.01)
        artifacts.pick_up()
    ((artifact, _),) = run.artifacts
    assert [Path(path).name for path in artifact.manifest.entries] == [
        f"rank-{index}" for index in (0, 2, 4)
    ]
    most = "takes 5 MB a trace and 10 MB in all, so it leaves out"
    assert warned == [
        f"the W&B artifact of iter-0000003 {most} {files[1]}, {files[3]}",
        f"the W&B artifact of iter-0000004 {most} {files[1]}",
    ]


def test_an_artifact_that_is_under_way_when_the_run_ends_is_dropped(tmp_path: Path) -> None:
    run = Run()
    artifacts = TraceArtifacts(lambda: run)
    run.run = None  # type: ignore[assignment]
    artifacts.begin("iter-0000003", [tmp_path / "rank-0"])
    assert not artifacts.busy


def test_an_artifact_that_wandb_refuses_is_one_line(
    tmp_path: Path, warned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: Any, **__: Any) -> None:
        raise ValueError("no such type of artifact")

    monkeypatch.setattr("wandb.Artifact", refuses)
    file = tmp_path / "rank-0"
    file.touch()
    run = Run()
    artifacts = TraceArtifacts(lambda: run)
    artifacts.begin("iter-0000003", [file])
    while artifacts.busy:
        time.sleep(0.01)
        artifacts.pick_up()
    assert run.artifacts == []
    assert warned == [
        "there is no W&B artifact of iter-0000003: ValueError: no such type of artifact"
    ]
