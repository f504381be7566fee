# SPDX-License-Identifier: Apache-2.0
"""Which training loop is followed: Megatron's own, or one that has called `attach()`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

MEGATRON = "megatron"
"""The name of a loop whose flags are Megatron's, which advice then names."""
NO_LAST = sys.maxsize
"""The last iteration of a loop that does not say how many it runs."""
_ROOT = "model"
"""A chunk itself, where neither its model nor it has a name."""


class Models(list[Any]):
    """The model chunks of all models of a loop, for who needs no more than a list of modules.

    Args:
        chunks: of a model without a name, or of the models by their names.
    """

    def __init__(self, chunks: Iterable[Any] | Mapping[str, Iterable[Any]]) -> None:
        super().__init__()
        self.by_name: dict[str, list[Any]] = {}
        """Empty where a loop has one model, which needs no name."""
        if isinstance(chunks, Mapping):
            for name, of in chunks.items():
                self.add(name, of)
        else:
            self.extend(chunks)

    def add(self, name: str, chunks: Iterable[Any]) -> None:
        """One more model; who has this list knows it from the next window on."""
        self.by_name[name] = list(chunks)
        self.extend(self.by_name[name])


class NamedChunk(NamedTuple):
    """A model chunk, and the names by which users know it.

    Args:
        model: the name of its model; empty where a loop has one.
        root: of the chunk itself: `model`, `chunk1.model`, `critic`, `critic.chunk1`.
        prefix: stands before the paths in it: nothing, `chunk1.`, `critic.`, `critic.chunk1.`.
        chunk: itself.
    """

    model: str
    root: str
    prefix: str
    chunk: Any


def named_chunks(model: Any) -> Iterator[NamedChunk]:
    """The chunks of all models.

    Args:
        model: `Models`, a list of chunks, or one.
    """
    models = model.by_name if isinstance(model, Models) else {}
    for name, of in models.items():
        for index, chunk in enumerate(of):
            root = f"{name}.chunk{index}" if len(of) > 1 else name
            yield NamedChunk(name, root, f"{root}.", chunk)
    if models:
        return
    chunks = model if isinstance(model, (list, tuple)) else [model]
    for index, chunk in enumerate(chunks):
        prefix = f"chunk{index}." if len(chunks) > 1 else ""
        yield NamedChunk("", f"{prefix}{_ROOT}", prefix, chunk)


@dataclass(frozen=True, slots=True)
class TrainingLoop:
    """What a loop says of itself, and Megatron's arguments do not.

    Args:
        name: goes into the metadata of every trace.
        arguments: for `run.json`; None takes Megatron's.
        flags: what the objects of the run are set to, in words of Megatron's command line, so that
            no advice recommends what is on.
        why_last: what ends the loop, for messages; None takes Megatron's flags.
        tokens: of an iteration over all ranks; None takes Megatron's arguments.
        coordinates: of this rank in the parallel dimensions; empty asks Megatron's groups.
        sizes: of these dimensions.
    """

    name: str = MEGATRON
    arguments: Mapping[str, Any] | None = None
    flags: tuple[str, ...] = ()
    why_last: str | None = None
    tokens: int | None = None
    coordinates: Mapping[str, int] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)


MEGATRONS_OWN = TrainingLoop()
