# SPDX-License-Identifier: Apache-2.0
"""Spans of the exchange of tokens between experts, where it is in the forward of no module.

    decoder.layers.3.mlp.token_dispatcher: MoEAlltoAllTokenDispatcher

With `--overlap-moe-expert-parallel-comm` Megatron cuts layers into nodes that run beside those of
another micro-batch: tokens are sent in one node and collected in another, and the layer's MLP is
never called as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from megatron.torch_profile.patching import Patch, PatchSet
from megatron.torch_profile.spans.ranges import Range

_DISPATCHER = "token_dispatcher"
"""Of Megatron's MoE layer: an attribute that is no module."""
_NODES = ("moe_dispatch", "moe_combine")
_INSIDE = ("mtp_model_layer", "transformer_layer")
"""Where a layer of multi-token prediction has the layer that has an MLP."""


def dispatcher_names(models: Iterable[tuple[str, Any]], depth: int | None) -> dict[int, str]:
    """What exchanges the tokens of each MoE layer, by `id` of the layer.

    Args:
        models: with what stands before their paths.
        depth: deepest path that gets a span; None for all.
    """
    found = {}
    for prefix, model in models:
        for path, module in model.named_modules():
            dispatcher = vars(module).get(_DISPATCHER)  # what is no module lies there
            if dispatcher is not None and (depth is None or path.count(".") + 1 < depth):
                found[id(module)] = f"{prefix}{path}.{_DISPATCHER}: {type(dispatcher).__name__}"
    return found


@contextmanager
def token_dispatch_spans(names: Mapping[int, str]) -> Iterator[None]:
    """While open, nodes that are built leave spans.

    Args:
        names: of the spans, by `id` of the MoE layer.
    """
    global _names
    _names = names
    _PATCHES.apply()
    try:
        yield
    finally:
        _PATCHES.remove()
        _names = {}


def _build_nodes(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    built = wrapped(*args, **kwargs)
    layer = getattr(instance, "layer", None)
    inside = [layer, *(getattr(layer, one, None) for one in _INSIDE)]
    found = [_names.get(id(getattr(one, "mlp", None))) for one in inside]
    name = next(filter(None, found), None)
    for node in filter(None, (getattr(instance, one, None) for one in _NODES)):
        forward = getattr(node, "forward_func", None)
        if name is not None and forward is not None:
            node.forward_func = _with_span(forward, name)
    return built


def _with_span(forward: Any, name: str) -> Any:
    def exchange(*args: Any, **kwargs: Any) -> Any:
        with Range(name):
            return forward(*args, **kwargs)

    return exchange


_names: Mapping[int, str] = {}
_PATCHES = PatchSet(
    (
        Patch(
            "megatron.core.models.common.model_chunk_schedule_plan",
            "TransformerLayerSchedulePlan._build_callable_nodes",
            _build_nodes,
            (0, 14),
        ),
    )
)
