# SPDX-License-Identifier: Apache-2.0
"""When a module's backward begins and ends, told by autograd's nodes and tensors.

The hooks return nothing, so gradients are what they were, and put no node into the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from megatron.torch_profile.guard import Guard
from megatron.torch_profile.spans.ranges import begin, end

_BOUNDARY = "megatron.torch_profile.boundary"


class BackwardSpans:
    """The backward spans of modules, by graph task (one run of autograd's engine).

    Args:
        guard: what autograd calls goes through it.
    """

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self._open: dict[int, list[_BackwardSpan]] = {}
        # Accumulators outlive their graph, so hooks on them are taken back one by one.
        self._hooked: set[_BackwardSpan] = set()
        # Grows with every close: spans of an earlier one no longer begin.
        self.generation = 0

    def watch(
        self, name: str, inputs: Any, output: Any, parameters: Callable[[], Any] | None
    ) -> None:
        """A forward has just returned: have its backward leave a span.

        Args:
            name: of the span.
            inputs, output: of the module, nested as they may be.
            parameters: what the module's parameters are; None if its backward ends with the pass.
        """
        tensors: list[Any] = []
        _collect(inputs, tensors)
        # A tied weight is passed like an input, and its gradient is complete only at the very end.
        incoming = [
            tensor
            for tensor in tensors
            if tensor.requires_grad
            and not (tensor.is_leaf and isinstance(tensor, torch.nn.Parameter))
        ]
        known = {id(tensor) for tensor in incoming}
        outgoing: list[Any] = []
        _collect(output, outgoing)
        # A module that returns its input did nothing, and has no backward of its own.
        nodes = [t.grad_fn for t in outgoing if t.grad_fn and id(t) not in known]
        if not nodes:
            return
        span = _BackwardSpan(name, self)
        if parameters is None:
            span.missing = 1  # comes never: the end of the pass closes it
        elif incoming:
            # A tensor's gradient is complete when autograd comes to the node that made it, which
            # mostly is where the backward of the module before begins: one hook does for both.
            made_by = {tensor.grad_fn for tensor in incoming}
            leaves = [t for t in incoming if t.grad_fn is None] if None in made_by else ()
            made_by.discard(None)
            span.missing = len(made_by) + len(leaves)
            for node in made_by:
                _boundary(node).ends.append(span)
            for leaf in leaves:
                leaf.register_hook(span.complete)
        else:
            # The first module of all: no input wants a gradient, so it is done with its weights.
            accumulators = [_accumulator(p) for p in parameters() if p.requires_grad]
            if not accumulators:
                return
            span.missing = len(accumulators)
            span.hooks = [node.register_hook(span.complete) for node in accumulators]
            self._hooked.add(span)
        for node in nodes:
            _boundary(node).begins.append(span)

    @property
    def open(self) -> list[str]:
        """Names of what has begun and not ended."""
        spans = [span for task in [*self._open.values()] for span in task]
        return [span.name for span in spans if span.is_open]

    def close(self) -> None:
        """Close all that is open, and leave no hook behind."""
        self.generation += 1
        for task in list(self._open):
            self._close_task(task)
        for span in list(self._hooked):
            span.end()

    def opened(self, span: _BackwardSpan) -> None:
        """A span has begun in the running graph task, with which it ends at the latest."""
        task = torch._C._current_graph_task_id()
        if task not in self._open:
            self._open[task] = []
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(lambda: self.guard(self._close_task, task))
        self._open[task].append(span)

    def ended(self, span: _BackwardSpan) -> None:
        """A span with hooks of its own is over, whether it ever began or not."""
        self._hooked.discard(span)

    def _close_task(self, task: int) -> None:
        for span in reversed(self._open.pop(task, [])):
            span.end()


class _BackwardSpan:
    """One span: begins with the first gradient used, ends with the last one that is complete."""

    __slots__ = ("_done", "_generation", "_range", "_spans", "hooks", "missing", "name")

    def __init__(self, name: str, spans: BackwardSpans) -> None:
        self.hooks: list[Any] | None = None
        self.missing = 0
        """How many gradients make it complete."""
        self.name = name
        self._spans = spans
        self._generation = spans.generation
        self._done = False
        self._range: Any = None

    def begin(self) -> None:
        """Autograd comes to the module's output."""
        spans = self._spans
        if self._generation != spans.generation or self._done or self._range is not None:
            return
        self._range = begin(self.name)
        spans.opened(self)

    @property
    def is_open(self) -> bool:
        """Whether it has begun and not ended."""
        return self._range is not None

    def complete(self, *_: Any) -> None:
        """A gradient is complete."""
        if self._range is None:  # a weight's, in the backward of another micro-batch
            return
        self.missing -= 1
        if self.missing <= 0:
            try:
                self.end()
            except Exception as error:
                self._spans.guard.fail(error)

    def end(self) -> None:
        """For good: an output that is used twice does not open it again."""
        self._done = True
        if self.hooks is not None:
            hooks, self.hooks = self.hooks, None
            for hook in hooks:
                hook.remove()
            self._spans.ended(self)
        opened, self._range = self._range, None
        if opened is not None:
            end(opened)


class _Boundary:
    """What ends and what begins before an autograd node runs.

    A module and the last module inside it share the node that made their output, and a module and
    the first one inside it the nodes that made their inputs. The inner one's forward returns first,
    and its backward must lie inside the outer one's: of several spans the one added last begins
    first, and ends last.
    """

    __slots__ = ("begins", "ends")

    def __init__(self) -> None:
        self.begins: list[_BackwardSpan] = []
        self.ends: list[_BackwardSpan] = []

    def __call__(self, *_: Any) -> None:
        for span in self.ends:
            span.complete()
        for span in reversed(self.begins):
            guard = span._spans.guard
            if guard.failed:
                return
            try:
                span.begin()
            except Exception as error:
                guard.fail(error)


def _boundary(node: Any) -> _Boundary:
    metadata = node.metadata
    boundary: _Boundary | None = metadata.get(_BOUNDARY)
    if boundary is None:
        boundary = metadata[_BOUNDARY] = _Boundary()
        node.register_prehook(boundary)
    return boundary


def _accumulator(parameter: Any) -> Any:
    """The node that adds up a parameter's gradient, to which Megatron's DDP hooks its reduction."""
    return parameter.expand_as(parameter).grad_fn.next_functions[0][0]


def _collect(value: Any, found: list[Any]) -> None:
    """Tensors in a value, nested as they may be."""
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            if item is not None:
                _collect(item, found)
    elif isinstance(value, dict):
        for item in value.values():
            if item is not None:
                _collect(item, found)
