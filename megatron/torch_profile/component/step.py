# SPDX-License-Identifier: Apache-2.0
"""One step of a case: compiled or not, cast or not, forward or forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from typing import Any

import msgspec
import torch
from torch.utils import _pytree

from megatron.torch_profile.component.component import Component
from megatron.torch_profile.component.variants import Case
from megatron.torch_trace.errors import TorchTraceError, UsageError

_CUDA_GRAPHS = ("reduce-overhead", "max-autotune")


class ShapesError(TorchTraceError):
    """A component's output or input is another one than in its first step."""


class Step:
    """What is called again and again.

    Args:
        component: built for this case; it is cast in place.
        case: what is asked of it.
        device: cpu or cuda.
    """

    def __init__(self, component: Component, case: Case, device: str) -> None:
        self.component = component
        self._case = case
        self._device = device
        self.goes_backward = case.direction == "forward-backward" and not component.whole_step
        if case.cast is not None:
            _cast(component, getattr(torch, case.cast))
        self._call: Callable[..., Any] = component.call
        if case.compile is not None:
            self._call = _compiled(component.call, case)
        self._marks = case.compile is not None and case.compile.mode in _CUDA_GRAPHS
        self._gradients: list[torch.Tensor] | None = None
        self._shapes: list[Any] | None = None
        self._leaves: list[torch.Tensor] = self._inputs()
        self._with_gradient: list[torch.Tensor] | None = None
        self._output: Any = None
        self.output_dtypes: set[str] = set()

    def prepare(self) -> None:
        """Before each step, outside of what is measured: no gradients, no output.

        Quick, as all that runs between two steps: a GPU that is done would have to wait for it.
        """
        self._output = None
        for tensor in self._tensors_with_gradient():
            tensor.grad = None
        if self._marks:
            torch.compiler.cudagraph_mark_step_begin()

    def __call__(self) -> None:
        """One step."""
        self._output = self._run(self._call)

    def eagerly(self) -> Any:
        """One step without torch.compile, for those who look at its operators."""
        return self._run(self.component.call)

    def explained(self) -> Any:
        """What torch.compile makes of the component."""
        self.prepare()
        component = self.component
        return import_module("torch._dynamo").explain(component.call)(
            *component.inputs, **component.keywords
        )

    def outputs(self) -> list[torch.Tensor]:
        """Tensors of the last step's output."""
        return [one for one in _pytree.tree_leaves(self._output) if isinstance(one, torch.Tensor)]

    def check_shapes(self) -> None:
        """Compare with the first step.

        Raises:
            ShapesError: an output or an input has another shape or dtype.
        """
        single = isinstance(self._output, torch.Tensor)
        outputs = [self._output] if single else self.outputs()
        now = [(one.shape, one.dtype) for one in (*self._leaves, *outputs)]
        if self._shapes is None:
            self._shapes = now
            self.output_dtypes = {_name(one.dtype) for one in self.outputs()}
        elif now != self._shapes:
            before, after = _first_difference(self._shapes, now)
            raise ShapesError(
                f"the component changes shapes from step to step: {before} became {after}; a "
                "component must do the same work in each step."
            )

    def _run(self, call: Callable[..., Any]) -> Any:
        component = self.component
        with ExitStack() as stack:
            stack.enter_context(component.around())
            if not self.goes_backward and not component.whole_step:
                stack.enter_context(torch.no_grad())
            if self._case.autocast is not None:
                dtype = getattr(torch, self._case.autocast)
                stack.enter_context(torch.autocast(self._device, dtype))
            output = call(*component.inputs, **component.keywords)
        if self.goes_backward:
            self._run_backward(output)
        return output

    def _run_backward(self, output: Any) -> None:
        tensors = [
            one
            for one in _pytree.tree_leaves(output)
            if isinstance(one, torch.Tensor) and one.requires_grad
        ]
        if not tensors:
            raise UsageError(
                f"target {self._case.target}: no output needs a gradient, so there is no backward "
                "pass; write `direction: forward`."
            )
        if self._gradients is None:
            self._gradients = [torch.randn_like(one) for one in tensors]
        torch.autograd.backward(tensors, self._gradients)

    def _tensors_with_gradient(self) -> list[torch.Tensor]:
        """Those that lose their gradient between steps; asked for once, after the first step."""
        if self.component.whole_step:
            return []
        if self._with_gradient is not None:
            return self._with_gradient
        found = [one for one in (*self.component.parameters(), *self._leaves) if one.requires_grad]
        if self._shapes is not None:
            self._with_gradient = found
        return found

    def _inputs(self) -> list[torch.Tensor]:
        leaves = _pytree.tree_leaves((self.component.inputs, dict(self.component.keywords)))
        return [one for one in leaves if isinstance(one, torch.Tensor)]


def _compiled(call: Callable[..., Any], case: Case) -> Callable[..., Any]:
    assert case.compile is not None
    options = {k: v for k, v in msgspec.to_builtins(case.compile).items() if v is not None}
    if options.get("mode") is not None and options["backend"] != "inductor":
        del options["mode"]
    try:
        compiled: Callable[..., Any] = torch.compile(call, **options)
    except Exception as error:
        text = " ".join(str(error).split())
        raise UsageError(f"compile: {text}") from None
    return compiled


def _cast(component: Component, dtype: torch.dtype) -> None:
    if component.module is not None:
        component.module.to(dtype=dtype)
    component.inputs = _pytree.tree_map_only(
        torch.Tensor, lambda one: _cast_tensor(one, dtype), component.inputs
    )
    component.keywords = _pytree.tree_map_only(
        torch.Tensor, lambda one: _cast_tensor(one, dtype), dict(component.keywords)
    )


def _cast_tensor(one: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if not one.is_floating_point():
        return one
    return one.detach().to(dtype).requires_grad_(one.requires_grad)


def _first_difference(before: list[Any], after: list[Any]) -> tuple[str, str]:
    for old, new in zip(before, after, strict=False):
        if old != new:
            return _told(old), _told(new)
    return f"{len(before)} tensors", f"{len(after)} tensors"


def _told(one: Any) -> str:
    shape, dtype = one
    return f"{list(shape)} {_name(dtype)}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
