# SPDX-License-Identifier: Apache-2.0
"""The end of a W&B run waits for what traces say."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from megatron.torch_profile.followers import followers
from megatron.torch_profile.hooks.megatron_names import PATCHES


class Told:
    """Stands in for whatever follows training, and keeps the order of what it is told."""

    def __init__(self, name: str, said: list[str]) -> None:
        self._name = name
        self._said = said

    def __getattr__(self, method: str) -> Callable[..., None]:
        return lambda *args, **kwargs: self._said.append(f"{self._name}.{method}")


@pytest.mark.parametrize(
    ("planned", "before"),
    [(None, []), ("a plan", ["recorder.close", "results.hurry"])],
    ids=["after training", "inside it"],
)
def test_a_wandb_run_does_not_end_before_what_traces_say_is_in_it(
    planned: str | None, before: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    monkeypatch.setattr(followers, "plan", planned)
    monkeypatch.setattr(followers, "steps", Told("recorder", order))
    monkeypatch.setattr(followers, "results", Told("results", order))
    (finish,) = (patch for patch in PATCHES if patch.name == "finish")
    finish.wrapper(lambda: order.append("finished"), None, (), {})
    assert order == [*before, "results.finish", "finished"]
    monkeypatch.setattr(followers, "results", None)
    finish.wrapper(lambda: order.append("finished again"), None, (), {})
    assert order[-1] == "finished again"
