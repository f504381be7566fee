# SPDX-License-Identifier: Apache-2.0
"""The seam for training loops that are not Megatron's: `attach()` before them, `step()` in them.

    with torch_profile.attach(model, last_iteration=1000):
        for iteration in range(1, 1001):
            with torch_profile.step(iteration):
                ...                                   one optimizer step, with its micro-batches

What follows Megatron's `train` follows these loops too. An iteration is what runs inside `step`:
what runs between two of them (evaluation, a checkpoint) belongs to none.

A loop may have several models, which have names. Where each has steps of its own, an iteration is a
round of them, which begins with the first model and ends where the next round begins:

    step(model=)    critic critic actor actor    critic critic actor actor    critic ...
    iteration       1                            2                            3
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from types import TracebackType
from typing import Any

from megatron.torch_profile.exits import at_exit, not_at_exit
from megatron.torch_profile.followers import followers
from megatron.torch_profile.guard import Guard
from megatron.torch_profile.hooks import (
    cuda_graphs,
    following,
    loop_config,
    loop_facts,
    model_names,
)
from megatron.torch_profile.log import Slug, exit_with, warn
from megatron.torch_profile.plan import topology
from megatron.torch_profile.plan.training_loop import MEGATRON, NO_LAST, Models, TrainingLoop
from megatron.torch_profile.spans import loop_phases
from megatron.torch_trace.errors import UsageError

_BETWEEN = "what runs between two steps"


class Attached:
    """A loop that has called `attach()`, until `detach()` or the end of the block or process.

    Args:
        first: its first iteration.
        stack: what is open until training ends.
        models: of the loop.
    """

    def __init__(self, first: int, stack: ExitStack, models: Models) -> None:
        self.next = first
        self.models = models
        self.in_step = False
        self._round: int | None = None
        self._others = False  # whether another model than the first has stepped in it
        self._stack = stack
        self._failed = False
        self._steps = Guard(Slug.PROFILING_STOPPED, "profiling stops, training goes on")
        self._results = Guard(Slug.SUMMARY_FAILED, "training goes on without summaries of windows")
        self._warned = self._warned_of_name = False
        self._pid = os.getpid()

    def __enter__(self) -> Attached:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _forget(self)
        if os.getpid() == self._pid:  # a fork that ends is not the end of training
            self.end_round(failed=kind is not None)
            self._stack.__exit__(kind, error, trace)

    def detach(self) -> None:
        """Training has ended: write what is recorded. A second call changes nothing."""
        _forget(self)
        if os.getpid() != self._pid:
            return
        self.end_round(failed=self._failed)
        error = RuntimeError("the last step failed") if self._failed else None
        with suppress(RuntimeError):
            self._stack.__exit__(type(error) if error else None, error, None)

    def end_of_process(self) -> None:
        """The script has ended without `detach`."""
        followers.process_ends = True
        self.detach()

    def begin(self, iteration: int) -> bool:
        """An iteration begins; False if it is none that can follow the one before."""
        due = f"comes when iteration {self.next} or a later one is due"
        why = due if isinstance(iteration, int) else "is no whole number"
        if why != due or iteration < self.next:
            if not self._warned:
                self._warned = True
                warn(
                    Slug.STEP_NOT_NEXT,
                    "step(%r) %s, and is not followed; a step is one optimizer step, with all its "
                    "micro-batches",
                    iteration,
                    why,
                )
            return False
        self.next, self._failed, followers.stepped = iteration + 1, False, True
        self._steps(followers.steps.begin_step, iteration)
        if followers.heartbeat is not None:
            followers.heartbeat.begin_step(iteration)
        return True

    def end(self, iteration: int, *, failed: bool) -> None:
        """The iteration has ended; one that failed leaves its window open, for `detach`."""
        self._failed = failed
        if failed:
            return
        self._steps(followers.steps.end_step)
        if followers.results is not None:
            self._results(partial(followers.results.end_iteration, iteration, logs=True))
        if followers.heartbeat is not None:
            followers.heartbeat.log(iteration)
            if followers.monitor_lines is not None:
                self._steps(followers.monitor_lines.write, iteration)
            followers.heartbeat.end_step(_BETWEEN)

    def look_up(self, name: str) -> None:
        """A step is said to be of a model: if there is none of this name, that is said once."""
        if not self._warned_of_name and name not in list(self.models.by_name):
            self._warned_of_name = True
            model_names.say_unknown(name, self.models)

    def begin_round(self, name: str) -> None:
        """A step of one of the models begins, and with it perhaps another round."""
        is_first = name == next(iter(self.models.by_name), name)
        if self._others and is_first:
            self.end_round()
        if self._round is None and self.begin(iteration := self.next):
            self._round = iteration
        self._others = self._others or not is_first

    def end_round(self, *, failed: bool = False) -> None:
        """The models have had their steps; with one model that is so after each of its steps."""
        number, self._round, self._others = self._round, None, False
        if number is not None:
            self.end(number, failed=failed)


class _Step:
    """One iteration of an attached loop."""

    __slots__ = ("_attached", "_followed", "_iteration")

    def __init__(self, attached: Attached, iteration: int) -> None:
        self._attached, self._iteration = attached, iteration
        self._followed = False

    def __enter__(self) -> None:
        self._attached.end_round()
        self._followed = self._attached.begin(self._iteration)
        self._attached.in_step = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._attached.in_step = False
        if self._followed:
            self._attached.end(self._iteration, failed=kind is not None)


@contextmanager
def _model_step(attached: Attached, name: str) -> Iterator[None]:
    """A step of one of several models; inside an iteration that the loop counts it begins none."""
    counted, attached.in_step = attached.in_step, True
    if not counted:
        attached.begin_round(name)
    failed = True
    try:
        with loop_phases.model_step(name):
            yield
        failed = False
    finally:
        attached.in_step = counted
        if not counted and (failed or len(attached.models.by_name) < 2):
            attached.end_round(failed=failed)


def attach(
    model: Any,
    *,
    optimizer: Any,
    config: loop_config.Given,
    first_iteration: int,
    last_iteration: int | None,
    arguments: Any,
    mesh: Any,
    loop: str,
    flops_per_iteration: int | None,
    tokens_per_iteration: int | None,
) -> Attached:
    """See `megatron.torch_profile.attach`."""
    global _current
    named = isinstance(model, Mapping)
    if _current is not None and named:
        model_names.check(model)
        if model_names.joined(_current.models, model):
            return _current
    if _current is not None:
        _say_that_it_ends(_current)
        _current.detach()
    stack = ExitStack()
    attached = Attached(first_iteration, stack, Models({}))
    try:
        wanted = loop_config.fields_of(config, os.environ)
        if not wanted["enabled"]:
            return attached
        first, last, flops, tokens = loop_facts.whole_numbers(
            first_iteration=first_iteration,
            last_iteration=last_iteration,
            flops_per_iteration=flops_per_iteration,
            tokens_per_iteration=tokens_per_iteration,
        )
        coordinates, sizes = loop_facts.of_mesh(mesh)
        _check()
    except UsageError as error:
        exit_with(error)
    if named:
        model_names.check(model)
    attached.next = first or 1
    models = attached.models = loop_facts.models_of(model)
    args = loop_facts.namespace(arguments if loop == MEGATRON else None, wanted)
    args.iteration = attached.next - 1
    args.train_iters = NO_LAST if last is None else last
    facts = TrainingLoop(
        name=loop,
        arguments=loop_facts.recorded(arguments),
        flags=loop_facts.flags_of(models),
        why_last=f"last_iteration={last} of attach()",
        tokens=tokens,
        coordinates=coordinates,
        sizes=sizes,
    )
    followers.attached = True
    cuda_graphs.captures.apply()
    optimizer = list(optimizer.values()) if isinstance(optimizer, Mapping) else optimizer
    following.record(stack, args, models or None, optimizer, lambda: flops, facts)
    _current = attached
    at_exit(attached.end_of_process)  # after the recorder's, so called before it
    return attached


def step(iteration: int | None, model: str | None) -> AbstractContextManager[None]:
    """See `megatron.torch_profile.step`."""
    if _current is None:
        return _NOTHING
    if model is not None:
        _current.look_up(model)
        return _model_step(_current, model)
    return _Step(_current, loop_facts.number(_current.next if iteration is None else iteration))


def _say_that_it_ends(attached: Attached) -> None:
    warn(
        Slug.ATTACHED_AGAIN,
        "attach() comes a second time without detach(): the recording of the first loop ends after "
        "iteration %d; several models of one loop are recorded together where they have names: "
        'attach({"actor": actor, "critic": critic})',
        attached.next - 1,
    )


def _check() -> None:
    ranks = os.environ.get("WORLD_SIZE", "1")
    if ranks.isdecimal() and int(ranks) > 1 and not topology.initialised():
        raise UsageError(
            f"attach(): WORLD_SIZE is {ranks} and torch.distributed is not initialised, so the "
            "ranks cannot agree on one run; call attach() after init_process_group()."
        )


def _forget(attached: Attached) -> None:
    global _current
    if _current is attached:
        _current, followers.attached = None, False
        not_at_exit(attached.end_of_process)


_current: Attached | None = None
_NOTHING: AbstractContextManager[None] = nullcontext()
