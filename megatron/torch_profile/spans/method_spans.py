# SPDX-License-Identifier: Apache-2.0
"""Spans of methods that Megatron calls beside the forward of modules.

    decoder.layers.3.mlp.token_dispatcher: MoEAlltoAllTokenDispatcher
    decoder.layers.3.mlp.linear_fc1: TELinear (weight gradient)

**Exchange of tokens** between experts. What exchanges them is no module. In the plain schedules its
methods run inside of the forward of its MoE layer, of which they are now a part of their own. With
`--overlap-moe-expert-parallel-comm` Megatron cuts layers into nodes that run beside those of
another micro-batch, and the MoE layer is never called as a whole.

**Weight gradients** with `--delay-wgrad-compute`: the backward pass of a linear layer leaves them
out, and Megatron calls the layer's `backward_dw` beside an exchange of tokens. No autograd node
tells of that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

try:
    from torch.compiler import is_compiling
except ImportError:  # before torch 2.2
    from torch._dynamo.external_utils import is_compiling

from megatron.torch_profile.spans.model_parts import ModelPart
from megatron.torch_profile.spans.ranges import Range

_DISPATCHER = "token_dispatcher"
"""Of Megatron's MoE layers: an attribute that is no module."""
_EXCHANGE = (
    "dispatch_preprocess",
    "token_dispatch",
    "dispatch_postprocess",
    "combine_preprocess",
    "token_combine",
    "combine_postprocess",
    # Before core 0.13.
    "token_permutation",
    "token_unpermutation",
)
_WEIGHT_GRADIENT = "backward_dw"


@contextmanager
def method_spans(parts: Iterable[ModelPart], depth: int | None) -> Iterator[None]:
    """While open, exchanges of tokens and delayed weight gradients leave spans.

    Args:
        parts: of the model; those that can have no spans get none here.
        depth: deepest path that gets a span; None for all.
    """
    open_ = True
    graph_task = torch._C._current_graph_task_id

    def with_span(method: Callable[..., Any], name: str) -> Callable[..., Any]:
        again = f"{name} (recompute)"

        def called(*args: Any, **kwargs: Any) -> Any:
            # A plan of Megatron's may keep this function until after the window.
            if not open_ or is_compiling():
                return method(*args, **kwargs)
            # The backward pass asks for the forward: activations are recomputed.
            with Range(name if graph_task() == -1 else again):
                return method(*args, **kwargs)

        return called

    ours: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for owner, method, name in _wanted(parts, depth):
            own = vars(owner)
            # What an instance has of its own is not the class's to call.
            if callable(getattr(type(owner), method, None)) and method not in own:
                own[method] = wrapper = with_span(getattr(owner, method), name)
                ours.append((own, method, wrapper))
        yield
    finally:
        open_ = False
        for own, method, wrapper in ours:
            # Somebody may have wrapped ours since: theirs stays, and ours passes everything on.
            if own.get(method) is wrapper:
                del own[method]


def _wanted(parts: Iterable[ModelPart], depth: int | None) -> Iterator[tuple[Any, str, str]]:
    """Each object with the name of its method and that of the span."""
    for part in parts:
        if part.closed_by is not None:
            continue
        yield part.module, _WEIGHT_GRADIENT, f"{part.name} (weight gradient)"
        dispatcher = vars(part.module).get(_DISPATCHER)  # what is no module lies there
        path = part.name.partition(":")[0]
        if dispatcher is not None and hasattr(dispatcher, "__dict__"):
            inside = f"{path}.{_DISPATCHER}"
            if depth is None or part.depth < depth:
                for method in _EXCHANGE:
                    yield dispatcher, method, f"{inside}: {type(dispatcher).__name__}"
