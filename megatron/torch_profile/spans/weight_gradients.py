# SPDX-License-Identifier: Apache-2.0
"""Spans of weight gradients that are computed after the backward pass of their module.

    decoder.layers.3.mlp.linear_fc1: TEColumnParallelLinear (weight gradient)

With `--delay-wgrad-compute` the backward pass of a linear layer leaves the gradients of its weights
out, and Megatron calls the layer's `backward_dw` beside the exchange of tokens of another
micro-batch. That is outside of the module's backward span, and no autograd node tells of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from megatron.torch_profile.spans.ranges import Range

_COMPUTE = "backward_dw"
"""Of linear layers, of what holds them and of mixtures of experts, in Megatron and in Transformer
Engine."""


@contextmanager
def weight_gradient_spans(modules: Iterable[tuple[str, Any]]) -> Iterator[None]:
    """While open, `backward_dw` of these modules leaves a span.

    Args:
        modules: each with the name of its forward span.
    """
    open_ = True

    def with_span(compute: Callable[..., Any], name: str) -> Callable[..., Any]:
        def computed(*args: Any, **kwargs: Any) -> Any:
            # A plan of Megatron's may keep this function until after the window.
            if not open_:
                return compute(*args, **kwargs)
            with Range(name):
                return compute(*args, **kwargs)

        return computed

    ours = []
    try:
        for name, module in modules:
            own = vars(module)
            if callable(getattr(type(module), _COMPUTE, None)) and _COMPUTE not in own:
                own[_COMPUTE] = with_span(getattr(module, _COMPUTE), f"{name} (weight gradient)")
                ours.append(own)
        yield
    finally:
        open_ = False
        for own in ours:
            del own[_COMPUTE]
