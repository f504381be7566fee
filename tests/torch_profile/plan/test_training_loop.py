# SPDX-License-Identifier: Apache-2.0
"""By which names users know the chunks of the models that are followed."""

from __future__ import annotations

from typing import Any

import pytest

from megatron.torch_profile.plan.training_loop import Models, NamedChunk, named_chunks


@pytest.mark.parametrize(
    ("model", "named"),
    [
        ("one", [NamedChunk("", "model", "", "one")]),
        (["one"], [NamedChunk("", "model", "", "one")]),
        (
            ["one", "two"],
            [
                NamedChunk("", "chunk0.model", "chunk0.", "one"),
                NamedChunk("", "chunk1.model", "chunk1.", "two"),
            ],
        ),
        (
            Models({"actor": ["one", "two"], "critic": ["three"]}),
            [
                NamedChunk("actor", "actor.chunk0", "actor.chunk0.", "one"),
                NamedChunk("actor", "actor.chunk1", "actor.chunk1.", "two"),
                NamedChunk("critic", "critic", "critic.", "three"),
            ],
        ),
    ],
)
def test_chunks_are_known_by_their_model_and_by_their_number(
    model: Any, named: list[NamedChunk]
) -> None:
    assert list(named_chunks(model)) == named
