# SPDX-License-Identifier: Apache-2.0
"""What a trace says of the attention's mask."""

from __future__ import annotations

import enum

import pytest
from torch import nn

from megatron.torch_profile.spans.attention_mask import is_causal


class Mask(enum.Enum):
    causal = 1
    padding = 2


class Attention(nn.Module):  # type: ignore[misc,unused-ignore]
    def __init__(self, mask: Mask | str) -> None:
        super().__init__()
        self.attn_mask_type = mask


@pytest.mark.parametrize(
    ("masks", "told"),
    [
        ([Mask.causal, "causal"], True),
        ([Mask.causal, "padding_causal"], False),
        ([Mask.causal, Mask.causal], True),
        ([Mask.causal, Mask.padding], False),
        ([], None),
    ],
)
def test_attention_is_causal_if_every_mask_is(masks: list[Mask | str], told: bool | None) -> None:
    assert is_causal([nn.Sequential(*map(Attention, masks), nn.Linear(2, 2))]) is told


def test_of_a_model_that_is_none_of_torch_nothing_is_told() -> None:
    assert is_causal("model") is None
    assert is_causal(None) is None
