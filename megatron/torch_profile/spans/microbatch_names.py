# SPDX-License-Identifier: Apache-2.0
"""What the micro-batches of a schedule of Megatron's are called: number, model, chunk, place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from megatron.torch_profile.plan.training_loop import Models
from megatron.torch_profile.spans.pipeline_schedule import Schedule, microbatch_name


class MicrobatchNames:
    """The names of one iteration's micro-batches, in the order in which they run.

    Args:
        model: Megatron's list of model chunks, or a loop's models, whose names the names have.
    """

    def __init__(self, model: Any = None) -> None:
        self.schedule: Schedule | None = None
        """Of the forward that ran last; None without a pipeline."""
        models = model.by_name if isinstance(model, Models) else {}
        self._names = {id(chunk): name for name, of in models.items() for chunk in of}
        self._given: dict[int, tuple[int, int | None, str | None]] = {}
        self._forwards: Counter[tuple[int | None, str | None]] = Counter()
        self._count: Counter[tuple[str, str | None]] = Counter()

    def begin_step(self) -> None:
        """A new iteration: micro-batches count from 0 again."""
        self._given.clear()
        self._forwards.clear()
        self._count.clear()

    def begin_model_step(self, name: str) -> None:
        """A new step of one of several models: its own micro-batches count from 0 again."""
        for chunk, of in [key for key in self._forwards if key[1] == name]:
            del self._forwards[chunk, of]
        for direction, of in [key for key in self._count if key[1] == name]:
            del self._count[direction, of]

    def forward_name(self, model: Any, given: int | None) -> tuple[str, Callable[[Any], None]]:
        """The name of the next forward, and the call that remembers its output."""
        chunk = self.schedule.chunk_of(model) if self.schedule else None
        of = self._names.get(id(model))
        number = self._forwards[chunk, of] if given is None else given
        self._forwards[chunk, of] = number + 1
        name = microbatch_name("forward", number, chunk, self._place("forward", of), of)
        return name, partial(self._remember, number, chunk, of)

    def backward_name(self, output: Any) -> str:
        """The name of the backward of what a forward has returned."""
        number, chunk, of = self._given.pop(id(_first(output)), (None, None, None))
        return microbatch_name("backward", number, chunk, self._place("backward", of), of)

    def _remember(self, number: int, chunk: int | None, of: str | None, output: Any) -> None:
        self._given[id(_first(output))] = (number, chunk, of)

    def _place(self, direction: str, of: str | None) -> str | None:
        index = self._count[direction, of]
        self._count[direction, of] += 1
        return self.schedule.phase(direction, index) if self.schedule else None


def _first(value: Any) -> Any:
    while isinstance(value, (list, tuple, dict)) and value:
        value = next(iter(value.values())) if isinstance(value, dict) else value[0]
    return value
