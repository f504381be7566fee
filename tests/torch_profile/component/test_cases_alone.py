# SPDX-License-Identifier: Apache-2.0
"""What is open around one case is closed again, on whichever device, compiled or not."""

from __future__ import annotations

import pytest
import torch

from megatron.torch_profile.component.config import read
from megatron.torch_profile.component.run import alone
from megatron.torch_profile.component.variants import cases


@pytest.mark.parametrize("compiled", ["false", "true"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_case_gives_the_memory_of_its_device_back(
    monkeypatch: pytest.MonkeyPatch, device: str, compiled: str
) -> None:
    emptied: list[str] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append("cuda"))
    (case,) = cases(read("rms_norm", (f"variants.one.compile={compiled}",)))
    with alone(case, device):
        assert emptied == []
    assert emptied == ([] if device == "cpu" else ["cuda"])
