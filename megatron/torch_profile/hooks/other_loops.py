# SPDX-License-Identifier: Apache-2.0
"""The seam for training loops that are not Megatron's: `attach()` before them, `step()` in them.

    with torch_profile.attach(model, last_iteration=1000):
        for iteration in range(1, 1001):
            with torch_profile.step(iteration):
                ...                                   one optimizer step, with its micro-batches

What follows Megatron's `train` follows these loops too. An iteration is what runs inside `step`:
what runs between two of them (evaluation, a checkpoint) belongs to none.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from functools import partial
from types import SimpleNamespace, TracebackType
from typing import Any

from megatron.torch_profile.config import argument_of
from megatron.torch_profile.exits import at_exit, not_at_exit
from megatron.torch_profile.followers import followers
from megatron.torch_profile.guard import Guard
from megatron.torch_profile.hooks import cuda_graphs, following, loop_config, loop_facts
from megatron.torch_profile.log import Slug, exit_with, warn
from megatron.torch_profile.plan import topology
from megatron.torch_profile.plan.training_loop import MEGATRON, NO_LAST, TrainingLoop
from megatron.torch_trace.errors import UsageError

_BETWEEN = "what runs between two steps"


class Attached:
    """A loop that has called `attach()`, until `detach()` or the end of the block or process.

    Args:
        first: its first iteration.
        stack: what is open until training ends.
    """

    def __init__(self, first: int, stack: ExitStack) -> None:
        self.next = first
        self._stack = stack
        self._failed = False
        self._steps = Guard(Slug.PROFILING_STOPPED, "profiling stops, training goes on")
        self._results = Guard(Slug.SUMMARY_FAILED, "training goes on without summaries of windows")
        self._warned = False
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
            self._stack.__exit__(kind, error, trace)

    def detach(self) -> None:
        """Training has ended: write what is recorded. A second call changes nothing."""
        _forget(self)
        if os.getpid() != self._pid:
            return
        error = RuntimeError("the last step failed") if self._failed else None
        with suppress(RuntimeError):
            self._stack.__exit__(type(error) if error else None, error, None)

    def end_of_process(self) -> None:
        """The script has ended without `detach`."""
        followers.process_ends = True
        self.detach()

    def begin(self, iteration: int) -> bool:
        """An iteration begins; False if it is none that can follow the one before."""
        if iteration < self.next:
            if not self._warned:
                self._warned = True
                warn(
                    Slug.STEP_NOT_NEXT,
                    "step(%d) comes when iteration %d or a later one is due, and is not followed; "
                    "a step is one optimizer step, with all its micro-batches",
                    iteration,
                    self.next,
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


class _Step:
    """One iteration of an attached loop."""

    __slots__ = ("_attached", "_followed", "_iteration")

    def __init__(self, attached: Attached, iteration: int) -> None:
        self._attached, self._iteration = attached, iteration
        self._followed = False

    def __enter__(self) -> None:
        self._followed = self._attached.begin(self._iteration)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._followed:
            self._attached.end(self._iteration, failed=kind is not None)


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
    if _current is not None:
        _current.detach()
    stack = ExitStack()
    attached = Attached(first_iteration, stack)
    try:
        wanted = loop_config.fields_of(config, os.environ)
        if not wanted["enabled"]:
            return attached
        _check(first_iteration, last_iteration)
    except UsageError as error:
        exit_with(error)
    chunks = list(model) if isinstance(model, (list, tuple)) else [model]
    args = _arguments(wanted, arguments if loop == MEGATRON else None)
    args.iteration = first_iteration - 1
    args.train_iters = NO_LAST if last_iteration is None else last_iteration
    coordinates, sizes = loop_facts.of_mesh(mesh)
    facts = TrainingLoop(
        name=loop,
        arguments=loop_facts.recorded(arguments),
        flags=loop_facts.flags_of(chunks),
        why_last=f"last_iteration={last_iteration} of attach()",
        tokens=tokens_per_iteration,
        coordinates=coordinates,
        sizes=sizes,
    )
    followers.attached = True
    cuda_graphs.captures.apply()
    chunks = [chunk for chunk in chunks if chunk is not None]
    following.record(stack, args, chunks or None, optimizer, lambda: flops_per_iteration, facts)
    _current = attached
    at_exit(attached.end_of_process)  # after the recorder's, so called before it
    return attached


def step(iteration: int | None) -> AbstractContextManager[None]:
    """See `megatron.torch_profile.step`."""
    if _current is None:
        return _NOTHING
    return _Step(_current, _current.next if iteration is None else iteration)


def _check(first: int, last: int | None) -> None:
    for name, value in (("first_iteration", first), ("last_iteration", last)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise UsageError(f"attach({name}={value}): must be a whole number, 1 or more.")
    ranks = os.environ.get("WORLD_SIZE", "1")
    if ranks.isdecimal() and int(ranks) > 1 and not topology.initialised():
        raise UsageError(
            f"attach(): WORLD_SIZE is {ranks} and torch.distributed is not initialised, so the "
            "ranks cannot agree on one run; call attach() after init_process_group()."
        )


def _arguments(wanted: Mapping[str, Any], arguments: Any) -> SimpleNamespace:
    """What stands in for Megatron's namespace: its own where its flags are used."""
    args = SimpleNamespace(**(loop_facts.mapping_of(arguments) or {}))
    for name, value in wanted.items():
        setattr(args, argument_of(name), value)
    return args


def _forget(attached: Attached) -> None:
    global _current
    if _current is attached:
        _current, followers.attached = None, False
        not_at_exit(attached.end_of_process)


_current: Attached | None = None
_NOTHING: AbstractContextManager[None] = nullcontext()
