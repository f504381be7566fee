# SPDX-License-Identifier: Apache-2.0
"""What a trace has beside, or without, operators, inside a window and nowhere else."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from megatron.torch_profile.config import TorchProfileConfig
from megatron.torch_profile.followers import followers
from megatron.torch_profile.spans.hidden_operators import HiddenOperators, hidden_operators
from megatron.torch_profile.spans.loop_phases import LoopPhases, loop_phase_spans
from megatron.torch_profile.spans.modules import ModuleSpans, module_spans
from megatron.torch_profile.spans.phases import Phases, phase_spans
from megatron.torch_profile.spans.ranges import can_hide_operators
from megatron.torch_profile.spans.sections import section_spans


class Spans:
    """The spans of one window, and the switch for operators.

    Args:
        config: which kinds are wanted.
        model: Megatron's list of model chunks; None where it cannot be had.
    """

    def __init__(self, config: TorchProfileConfig, model: Any) -> None:
        self._stack = ExitStack()
        self._phases: Phases | None = None
        self._loop: LoopPhases | None = None
        self._modules: ModuleSpans | None = None
        self._operators: HiddenOperators | None = None
        if config.no_operators and can_hide_operators():
            self._operators = self._stack.enter_context(hidden_operators())
        if "phases" in config.wanted_spans:
            self._phases = self._stack.enter_context(phase_spans(model))
        if "sections" in config.wanted_spans:
            self._stack.enter_context(section_spans())
        if "modules" in config.wanted_spans and model is not None:
            self._modules = self._stack.enter_context(
                module_spans(model, config.spans_depth, backward=not config.draws_backward)
            )
        if self._phases and followers.attached:
            # After the modules, so that the span of a micro-batch encloses the model's.
            self._loop = self._stack.enter_context(loop_phase_spans(model, self._phases))
        _now.append(self)

    def begin_step(self) -> None:
        """An iteration begins."""
        if self._phases:
            self._phases.begin_step()
        if self._loop:
            self._loop.begin_step()
        if self._modules:
            self._modules.close_backward()

    @property
    def open(self) -> tuple[str, ...]:
        """Names of what is open now, phases first; any thread may ask."""
        phases = self._phases.open if self._phases else ()
        loop = self._loop.open if self._loop else ()
        return (*phases, *loop, *(self._modules.open if self._modules else ()))

    def start(self) -> None:
        """The profiler has begun to record, in this thread."""
        if self._operators:
            self._operators.start()

    def close(self) -> None:
        """Take everything back."""
        if self in _now:
            _now.remove(self)
        self._stack.close()


_now: list[Spans] = []


def open_spans() -> tuple[str, ...]:
    """Names of the spans that are open in the open window of this process, if there is one."""
    return tuple(name for spans in [*_now] for name in spans.open)
