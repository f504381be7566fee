# SPDX-License-Identifier: Apache-2.0
"""The modules of a model that a trace may speak of, by the names that users know.

decoder.layers.3.mlp: MLP             path and class
chunk1.decoder.layers.3.mlp: MLP      where the model has several chunks
critic.decoder.layers.3.mlp: MLP      of one of several models, which have names
model: GPTModel                       the model itself; with a name `critic: GPTModel`
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from megatron.torch_profile.plan.training_loop import named_chunks
from megatron.torch_profile.spans.graph_captures import is_graphed, is_to_come
from megatron.torch_trace import wording

# What Megatron wraps a model chunk in; the paths users know begin below them.
_WRAPPER_ATTRIBUTE = "module"
# Megatron's and torch's placeholders for a part that a layer does not have: a tenth of all spans.
_NOTHING = ("IdentityOp", "IdentityFuncOp", "Identity")
# torch.compile's mark on a function, and on a module that it was called on.
_COMPILED_FORWARD, _COMPILED_IN_PLACE = "_torchdynamo_orig_callable", "_compiled_call_impl"
# Why a module can have no spans.
_IN_GRAPHS, _COMPILED = "in CUDA graphs", "compiled"


@dataclass(frozen=True, slots=True)
class SpanCount:
    """How many modules of a model get spans, and how many can have none."""

    named: int
    in_graphs: int = 0
    compiled: int = 0

    def __str__(self) -> str:
        named = wording.counted(self.named, "module")
        return f"{named}; the {self._closed} get none" if self._closed else named

    @property
    def why_none(self) -> str:
        """Why no module has a span, where none has."""
        if self._closed:
            return f"the model is in CUDA graphs or compiled ({self._closed})"
        return "the model has no module within --torch-profile-spans-depth"

    @property
    def _closed(self) -> str:
        numbers = {_IN_GRAPHS: self.in_graphs, _COMPILED: self.compiled}
        return " and ".join(f"{number} {why}" for why, number in numbers.items() if number)


def count_spans(chunks: Any, depth: int | None = None) -> SpanCount:
    """What `ModuleSpans` would name; the model is not touched."""
    why = Counter(part.closed_by for part in model_parts(chunks, depth))
    return SpanCount(why[None], why[_IN_GRAPHS], why[_COMPILED])


@dataclass(frozen=True, slots=True)
class ModelPart:
    """A module that a trace may speak of, and why it can have no hooks; None where it can.

    Args:
        name: of its forward span.
        depth: of its path: `decoder.layers.3` has depth 3, the model itself 0.
        capture_to_come: it can until its graph is captured.
    """

    name: str
    module: Any
    depth: int
    closed_by: str | None
    capture_to_come: bool = False

    @property
    def is_model(self) -> bool:
        """Whether it is the model itself."""
        return not self.depth


def model_parts(chunks: Any, depth: int | None) -> Iterator[ModelPart]:
    """The modules that are called, down to a depth; see `ModuleSpans`."""
    seen: set[int] = set()
    for _, root, prefix, chunk in named_chunks(chunks):
        closed: dict[int, tuple[str, bool]] = {}
        for path, module in _unwrapped(chunk).named_modules():
            why = closed.get(id(module)) or _closed_by(module)
            if why:
                # Nor can what is inside.
                closed.update((id(child), why) for child in module.children())
            here = path.count(".") + 1 if path else 0
            if id(module) in seen:  # of several models: the first one's name is enough
                continue
            seen.add(id(module))
            if _is_called(module) and (depth is None or here <= depth):
                name = f"{prefix}{path}" if path else root
                name = f"{name}: {type(module).__name__}"
                yield ModelPart(name, module, here, *(why or (None,)))


def _is_called(module: Any) -> bool:
    """Whether a trace has something to say of it: lists of modules are never called."""
    has_forward = type(module).forward is not torch.nn.Module.forward or "forward" in vars(module)
    return has_forward and type(module).__name__ not in _NOTHING


def _closed_by(module: Any) -> tuple[str, bool] | None:
    """Why a module and what is inside can have no hooks, and whether only a capture to come is."""
    if is_graphed(module):
        return _IN_GRAPHS, is_to_come(module)
    return (_COMPILED, False) if _is_compiled(module) else None


def _is_compiled(module: Any) -> bool:
    # What is compiled while hooks are on it would keep them, and its graph would be another.
    forward = vars(module).get("forward")
    return (
        hasattr(forward, _COMPILED_FORWARD) or getattr(module, _COMPILED_IN_PLACE, None) is not None
    )


def _unwrapped(chunk: Any) -> Any:
    """The model in a chunk, without what Megatron wraps around it."""
    while hasattr(chunk, _WRAPPER_ATTRIBUTE):
        chunk = getattr(chunk, _WRAPPER_ATTRIBUTE)
    return chunk
