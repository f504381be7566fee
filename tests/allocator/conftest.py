# SPDX-License-Identifier: Apache-2.0
"""A pipeline of stages in 1F1B whose memory is told by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from snapshot_builder import MIB, SnapshotBuilder, block

FORWARD = ("mlp.py:3 forward", "transformer_layer.py:9 forward", "train.py:4 forward_step")
BACKWARD = ("mlp.py:8 backward",)
ADAM = ("/site/torch/optim/adam.py:178 _init_group", "core/optimizer/optimizer.py:3 step")
HOSTILE = "</script><img src=x onerror=document.title='hacked'>.py:1 forward"


def stage(number: int, stages: int, *, microbatches: int = 8) -> SnapshotBuilder:
    """One stage: it keeps as many micro-batches as there are stages from it to the end."""
    built = SnapshotBuilder()
    built.alloc((40 + 20 * (number == 0)) * MIB, *ADAM, time_us=1_000_000)
    built.alloc(3 * MIB, HOSTILE, time_us=1_000_001)
    built.segment(block(10 * (stages - number) * MIB, state="inactive"), block(512))
    for step in (5, 6):
        start = 1_000_100 + step * 100_000
        built.annotation(f"ProfilerStep#{step}", start, start + 90_000)
        kept: list[int] = []
        at = start + 1_000 * number
        order = [("f", n) for n in range(min(stages - number, microbatches))]
        for n in range(microbatches):
            order.append(("b", n))
            if stages - number + n < microbatches:
                order.append(("f", stages - number + n))
        for direction, n in order:
            if direction == "f":
                kept.append(built.alloc(10 * MIB, *FORWARD, time_us=at))
            else:
                built.free(kept.pop(0), *BACKWARD, time_us=at)
            name = "forward" if direction == "f" else "backward"
            built.annotation(f"{name} micro-batch {n}", at, at + 3_000)
            at += 4_000
    return built


@pytest.fixture(scope="session")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a window with four stages."""
    run = tmp_path_factory.mktemp("runs") / "20261128-101112"
    window = run / "iter-0000005-0000006"
    (window / "artifacts").mkdir(parents=True)
    for number in range(4):
        stage(number, 4).write(window / "artifacts" / f"rank-{number}.memory_snapshot.pickle")
    members = [{"rank": one, "coordinates": {"tp": 0, "pp": one}} for one in range(4)]
    (run / "run.json").write_text(json.dumps({"ranks": members}))
    return window
