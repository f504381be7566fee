# SPDX-License-Identifier: Apache-2.0
"""The ready components by name: which sizes each has, and which module builds it."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from megatron.torch_profile.component.component import Component
from megatron.torch_profile.component.config import Config, nearest
from megatron.torch_profile.component.ready.engine import LeftOutError
from megatron.torch_profile.component.ready.megatron import megatron
from megatron.torch_profile.component.ready.ready_case import ReadyCase
from megatron.torch_profile.component.targets import told
from megatron.torch_profile.component.variants import Case
from megatron.torch_trace.errors import UsageError

_TOKENS = {"sequence": 1024, "micro_batch": 1, "hidden": 1024}
_HEADS = {**_TOKENS, "heads": 16}
_LAYER = {**_HEADS, "ffn": 4096}


@dataclass(frozen=True, slots=True)
class Ready:
    """A ready component.

    Args:
        module: in this room; holds `build(ready) -> Component` of the name `function`.
        sizes: its names, with their defaults.
        arguments: names of its own arguments, beside those of Megatron's TransformerConfig.
        megatron: whether it is built from megatron-core.
    """

    module: str
    function: str
    sizes: dict[str, int] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    megatron: bool = True


_READY = {
    "rms_norm": Ready("norms", "rms_norm", _TOKENS, ("implementation", "eps"), megatron=False),
    "layer_norm": Ready("norms", "layer_norm", _TOKENS, ("implementation", "eps"), megatron=False),
    "attention": Ready("attention", "core", _HEADS, ("kernel", "causal"), megatron=False),
    "self_attention": Ready("layers", "self_attention", _HEADS, ("attention", "implementation")),
    "mlp": Ready("layers", "mlp", _LAYER, ("implementation",)),
    "moe": Ready(
        "layers",
        "moe",
        {**_LAYER, "experts": 8, "top_k": 2},
        ("implementation", "dispatcher", "grouped"),
    ),
    "transformer_layer": Ready("layers", "layer", _LAYER, ("attention", "implementation")),
    "pipeline_stage": Ready(
        "layers", "stage", {**_LAYER, "layers": 4}, ("attention", "implementation")
    ),
    "rotary": Ready("rotary", "rotary", _HEADS, ()),
    "cross_entropy": Ready(
        "cross_entropy",
        "cross_entropy",
        {"sequence": 1024, "micro_batch": 1, "vocabulary": 32768},
        ("kernel",),
    ),
    "optimizer_step": Ready(
        "optimizer_steps",
        "optimizer_step",
        {"hidden": 1024, "ffn": 4096, "layers": 4},
        ("optimizer",),
    ),
}
NAMES = tuple(_READY)


def surroundings(
    cases: Sequence[Case], config: Config, device: str
) -> AbstractContextManager[None]:
    """What has to be open while the cases are built and run."""
    if any(case.target in _READY and _READY[case.target].megatron for case in cases):
        return megatron(config, device)
    return nullcontext()


def check(cases: Sequence[Case]) -> None:
    """Refuse sizes that a ready component does not have, before anything is built.

    Raises:
        UsageError: with the nearest name.
    """
    for case in cases:
        if case.target not in _READY:
            continue
        one = _READY[case.target]
        for key in case.sizes:
            if key not in one.sizes:
                raise UsageError(
                    f"sizes: {case.target} has no size `{key}`{nearest(key, list(one.sizes))}"
                )


def build(case: Case, config: Config, device: str) -> Component:
    """The component of a name, with its inputs.

    Raises:
        UsageError: Megatron is not there, or refuses what is asked for.
    """
    if config.inputs:
        raise UsageError(f"inputs: {case.target} is a ready component and has its own; give sizes.")
    one = _READY[case.target]
    ready = ReadyCase(case, config, device, {**one.sizes, **case.sizes}, one.arguments)
    module = importlib.import_module(f"{__package__}.{one.module}")
    try:
        built: Component = getattr(module, one.function)(ready)
    except (UsageError, LeftOutError):
        raise
    except Exception as error:
        raise UsageError(f"target {case.target}: cannot be built: {told(error)}") from error
    return built
