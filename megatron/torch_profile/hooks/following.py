# SPDX-License-Identifier: Apache-2.0
"""Everybody who follows one training, begun in order and ended with it, whichever loop it is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any

from megatron.torch_profile.followers import followers
from megatron.torch_profile.log import Slug, warn
from megatron.torch_profile.plan.training_loop import MEGATRONS_OWN, TrainingLoop

if TYPE_CHECKING:
    from megatron.torch_profile.plan.capture_plan import CapturePlan

_MODULES = {
    "session": ("megatron.torch_profile.record.session", Slug.NO_PROFILE, "a profile"),
    "window_results": (
        "megatron.torch_profile.publish.window_results",
        Slug.SUMMARY_FAILED,
        "summaries of windows",
    ),
    "requests": (
        "megatron.torch_profile.monitor.lifetime",
        Slug.REQUESTS_FAILED,
        "windows on request",
    ),
    "watching": (
        "megatron.torch_profile.monitor.watching",
        Slug.MONITOR_FAILED,
        "a watch over hangs and slow ranks",
    ),
    "monitor_lines": (
        "megatron.torch_profile.publish.monitor_lines",
        Slug.MONITOR_FAILED,
        "lines of the monitor",
    ),
    "metrics": ("megatron.torch_profile.metrics.lifetime", Slug.METRICS_FAILED, "metrics"),
}


def follower(module: str) -> Any:
    """The module that follows training; None, said once, where what it needs is missing."""
    name, slug, lost = _MODULES[module]
    try:
        return import_module(name)
    except Exception as error:
        # The same on every rank, since it is installed so: nobody waits for this one.
        warn(slug, "training goes on without %s: %s: %s", lost, type(error).__name__, error)
        return None


def record(
    stack: ExitStack,
    args: Any,
    model: Any,
    optimizer: Any,
    count_flops: Callable[[], int | None],
    loop: TrainingLoop = MEGATRONS_OWN,
) -> CapturePlan | None:
    """Record what the flags in `args` ask for, until the stack is closed.

    Args:
        stack: what is open until training ends.
        args: Megatron's arguments, or what a loop has in their place.
        model: list of model chunks; None where it cannot be had.
        optimizer: None where it cannot be had.
        count_flops: FLOPs of one iteration, None if unknown.
        loop: what is followed.

    Returns:
        What is recorded; None if nothing is.
    """
    session = follower("session")
    if session is None:
        return None
    stack.enter_context(session.training(args, model, count_flops, optimizer, loop))
    capture = followers.plan
    if capture and capture.config.trigger and (requests := follower("requests")):
        requests.begin(capture)
    if capture and capture.config.watches and (watching := follower("watching")):
        stack.enter_context(watching.training(capture, model))
    if followers.heartbeat and (monitor_lines := follower("monitor_lines")):
        stack.enter_context(monitor_lines.training(capture))
    if capture and (window_results := follower("window_results")):
        stack.enter_context(window_results.training(capture, args))
    return capture
