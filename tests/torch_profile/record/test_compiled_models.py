# SPDX-License-Identifier: Apache-2.0
"""A compiled model beside windows that end: the losses are the same, and the traces are whole."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from recordings import end, make, spans
from recordings import signals as signals
from written_files import files_below

from megatron.torch_profile.record.recorder import Recorder

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore::FutureWarning")


def losses(recorder: Recorder | None) -> list[float]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for iteration in range(1, 10):
        if recorder is not None:
            recorder.begin_step(iteration)
        # In the window of iteration 5 the shape changes, and the model is compiled again.
        loss = compiled(torch.ones(5 if iteration == 5 else 4, 8)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


@pytest.mark.slow
def test_a_model_that_is_compiled_again_in_a_window_trains_on_as_without_us(tmp_path: Path) -> None:
    recorder = make(tmp_path, repeat=3)
    found = losses(recorder)
    end(recorder)
    assert found == losses(None)
    assert files_below(tmp_path) == [f"iter-000000{n}/rank-0.pt.trace.json.gz" for n in (3, 5, 7)]
    for number in (3, 5, 7):
        path = tmp_path / f"iter-000000{number}/rank-0.pt.trace.json.gz"
        assert spans(path, "ProfilerStep") == [f"ProfilerStep#{number}"]
