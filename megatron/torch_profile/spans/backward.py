# SPDX-License-Identifier: Apache-2.0
"""When a module's backward begins and ends, told by autograd's nodes and tensors.

The hooks return nothing, so gradients are what they were, and put no node into the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.profiler import record_function

from megatron.torch_profile.guard import Guard

_BEGINS = "megatron.torch_profile.begins"


class BackwardSpans:
    """The backward spans of modules, by graph task (one run of autograd's engine).

    Args:
        guard: what autograd calls goes through it.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
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
        # A tied weight is passed like an input, and its gradient is complete only at the very end.
        incoming = [
            tensor
            for tensor in _tensors(inputs)
            if tensor.requires_grad and not isinstance(tensor, torch.nn.Parameter)
        ]
        known = {id(tensor) for tensor in incoming}
        # A module that returns its input did nothing, and has no backward of its own.
        nodes = [t.grad_fn for t in _tensors(output) if t.grad_fn and id(t) not in known]
        if not nodes:
            return
        span = _BackwardSpan(name, self)
        complete = self._guard.around(span.complete)
        if parameters is None:
            span.awaits(1)  # comes never: the end of the pass closes it
        elif incoming:
            span.awaits(len(incoming))
            for tensor in incoming:
                tensor.register_hook(complete)
        else:
            # The first module of all: no input wants a gradient, so it is done with its weights.
            accumulators = [_accumulator(p) for p in parameters() if p.requires_grad]
            if not accumulators:
                return
            span.awaits(len(accumulators))
            span.hooks = [node.register_hook(complete) for node in accumulators]
            self._hooked.add(span)
        for node in nodes:
            _before(node, self._guard.around(span.begin))

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
            engine.queue_callback(lambda: self._guard(self._close_task, task))
        self._open[task].append(span)

    def ended(self, span: _BackwardSpan) -> None:
        """A span is over, whether it ever began or not."""
        self._hooked.discard(span)

    def _close_task(self, task: int) -> None:
        for span in reversed(self._open.pop(task, [])):
            span.end()


class _BackwardSpan:
    """One span: begins with the first gradient used, ends with the last one that is complete."""

    def __init__(self, name: str, spans: BackwardSpans) -> None:
        self.hooks: list[Any] = []
        self._name = name
        self._spans = spans
        self._generation = spans.generation
        self._missing = 0
        self._done = False
        self._record: Any = None

    def awaits(self, gradients: int) -> None:
        """How many gradients make it complete."""
        self._missing = gradients

    def begin(self) -> None:
        stale = self._generation != self._spans.generation
        if stale or self._done or self._record is not None:
            return
        self._record = record_function(self._name)
        self._record.__enter__()
        self._spans.opened(self)

    def complete(self, *_: Any) -> None:
        """A gradient is complete."""
        if self._record is None:  # a weight's, in the backward of another micro-batch
            return
        self._missing -= 1
        if self._missing <= 0:
            self.end()

    def end(self) -> None:
        """For good: an output that is used twice does not open it again."""
        self._done = True
        for hook in self.hooks:
            hook.remove()
        self.hooks.clear()
        self._spans.ended(self)
        record, self._record = self._record, None
        if record is not None:
            record.__exit__(None, None, None)


def _before(node: Any, begin: Callable[[], None]) -> None:
    """Call `begin` before an autograd node runs; of several the one given last comes first.

    A module and the last module inside it share the node that made their output. The inner one
    returns first, and its backward must lie inside the outer one's.
    """
    if _BEGINS not in node.metadata:
        begins: list[Callable[[], None]] = []

        def before(*_: Any) -> None:
            for call in reversed(begins):
                call()

        node.metadata[_BEGINS] = begins
        node.register_prehook(before)
    node.metadata[_BEGINS].append(begin)


def _accumulator(parameter: Any) -> Any:
    """The node that adds up a parameter's gradient, to which Megatron's DDP hooks its reduction."""
    return parameter.expand_as(parameter).grad_fn.next_functions[0][0]


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
