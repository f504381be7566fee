# SPDX-License-Identifier: Apache-2.0
"""What is measured, built: a callable with its inputs, whoever made it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from megatron.torch_profile.component.config import Input
from megatron.torch_profile.component.inputs import tensors, with_sizes
from megatron.torch_profile.component.targets import resolve, told
from megatron.torch_profile.component.variants import Case
from megatron.torch_trace.errors import UsageError


@dataclass(slots=True)
class Component:
    """A component with its inputs.

    Args:
        call: a module, a function, or a bound `step`.
        inputs, keywords: what it is called with.
        module: whose parameters a backward pass computes gradients of.
        whole_step: `call` is a `step()`, which does all of its step itself.
        around: a context in which each call runs.
        causal: whether its attention has a causal mask; None if it has none, or nothing tells.
    """

    call: Callable[..., Any]
    inputs: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)
    module: torch.nn.Module | None = None
    whole_step: bool = False
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    causal: bool | None = None

    def parameters(self) -> list[torch.Tensor]:
        """Parameters of the module, each once."""
        return list(self.module.parameters()) if self.module is not None else []


def of_import_path(
    case: Case, wanted: list[Input], device: str, seed: int, ready: list[str]
) -> Component:
    """The component of any import path: a function, a class with `step()`, a module.

    Raises:
        UsageError: there is nothing to call, or it cannot be built.
    """
    found = resolve(case.target, ready)
    inputs = tensors(wanted, case.sizes, case.dtype, device, seed)
    arguments = with_sizes(case.arguments, case.sizes)
    if not isinstance(found, type):
        if not callable(found):
            raise UsageError(
                f"target {case.target}: is {type(found).__name__} and cannot be called; name a "
                "function, a class with step(), or a module."
            )
        _check_call(found, inputs, arguments, case.target)
        return Component(found, inputs, arguments, _module(found))
    instance = _instance(found, arguments, case, device)
    if callable(getattr(instance, "step", None)):
        _check_call(instance.step, inputs, {}, f"{case.target}.step")
        return Component(instance.step, inputs, {}, _module(instance), whole_step=True)
    if not callable(instance):
        raise UsageError(
            f"target {case.target}: has neither step() nor a call; a class needs one of them."
        )
    _check_call(getattr(instance, "forward", instance), inputs, {}, case.target)
    return Component(instance, inputs, {}, _module(instance))


def _instance(found: type, arguments: dict[str, Any], case: Case, device: str) -> Any:
    try:
        with torch.device(device):
            instance = found(**arguments)
    except Exception as error:
        raise UsageError(f"target {case.target}: cannot be built: {told(error)}") from error
    if isinstance(instance, torch.nn.Module):
        instance.to(device=device, dtype=getattr(torch, case.dtype))
    return instance


def _module(found: Any) -> torch.nn.Module | None:
    return found if isinstance(found, torch.nn.Module) else None


def _check_call(
    call: Callable[..., Any], inputs: tuple[Any, ...], keywords: Mapping[str, Any], name: str
) -> None:
    """Say in our words that inputs are missing, which Python would tell as a TypeError."""
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):  # of C
        return
    try:
        signature.bind(*inputs, **keywords)
    except TypeError as error:
        takes = ", ".join(signature.parameters) or "nothing"
        raise UsageError(
            f"target {name}: {error}; it takes {takes}, and the config gives {len(inputs)} "
            f"inputs and {len(keywords)} arguments."
        ) from None
