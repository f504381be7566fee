# SPDX-License-Identifier: Apache-2.0
"""Windows with spans of modules: whoever writes the trace draws those of the backward pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from recordings import end, make, spans
from recordings import signals as signals
from recordings import training_stops as training_stops
from written_files import files_below

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore::FutureWarning")


def trained(folder: Path, **flags: Any) -> list[str]:
    """Names of the modules' spans in the trace of a window, in order of time."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())
    recorder = make(folder, model=[model], spans=["modules"], **flags)
    for iteration in range(1, 6):
        recorder.begin_step(iteration)
        model(torch.ones(2, 4)).sum().backward()
    end(recorder)
    (trace,) = files_below(folder)
    return spans(folder / trace, "model: ", "0: ", "1: ")


FORWARD = ["model: Sequential", "0: Linear", "1: GELU"]
BACKWARD = [f"{name} (backward)" for name in ("model: Sequential", "1: GELU", "0: Linear")]


@pytest.mark.parametrize("flags", [{}, {"export": "sync"}, {"no_operators": True}], ids=str)
def test_backward_spans_are_in_the_trace(tmp_path: Path, flags: dict[str, Any]) -> None:
    assert trained(tmp_path, **flags) == [*FORWARD, *BACKWARD]


@pytest.mark.usefixtures("training_stops")
def test_a_forked_child_draws_them_too(tmp_path: Path) -> None:
    assert trained(tmp_path) == [*FORWARD, *BACKWARD]
