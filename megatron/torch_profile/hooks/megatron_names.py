# SPDX-License-Identifier: Apache-2.0
"""Every Megatron name that is wrapped, as data: where it is, and what wraps it.

Names are wrapped as attributes of the module that looks them up when it calls them, when that
module has been imported (now or later), and put back by `remove`. A wrapper passes arguments and
results through untouched: signatures drift with the version, so nothing here counts them.
"""

from __future__ import annotations

import inspect
from contextlib import ExitStack
from importlib import import_module
from typing import Any

from megatron.torch_profile.exits import end_now
from megatron.torch_profile.followers import followers
from megatron.torch_profile.guard import Guard
from megatron.torch_profile.hooks import following
from megatron.torch_profile.log import Slug
from megatron.torch_profile.patching import OLDEST_CORE, Patch, Wrapper
from megatron.torch_profile.plan.training_length import batch_grows


def _add_arguments(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    from megatron.torch_profile.cpu import training as cpu
    from megatron.torch_profile.hooks import arguments

    return arguments.add_group(
        wrapped(*args, **kwargs),
        where=inspect.getmodule(wrapped),
        after_parsing=[cpu.adjust_arguments] if cpu.active() else [],
    )


def _train(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    from megatron.torch_profile.hooks import arguments

    megatron_args = _megatron_args()
    profiles = arguments.config_of(megatron_args).enabled
    metrics_config = arguments.metrics_of(megatron_args)

    def count_flops() -> int | None:
        return _flops_per_iteration(megatron_args)

    capture: Any = None
    with ExitStack() as stack:
        if profiles:
            model, optimizer = Guard(
                Slug.SPANS_FAILED, "training goes on without spans of modules"
            )(_model_and_optimizer, wrapped, args, kwargs) or (None, None)
            capture = following.record(stack, megatron_args, model, optimizer, count_flops)
        if metrics_config.wanted and (metrics := following.follower("metrics")):
            stack.enter_context(
                metrics.training(metrics_config, megatron_args, capture, count_flops)
            )
            args, kwargs = metrics.with_timed_data(wrapped, args, kwargs)
        return wrapped(*args, **kwargs)


def _model_and_optimizer(train: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    given = inspect.signature(train).bind(*args, **kwargs).arguments
    return given.get("model"), given.get("optimizer")


def _metrics(method: str) -> Wrapper:
    """Hands a call to this method of the metrics of the training that runs, if it has any."""

    def hand_over(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        if followers.metrics is None:
            return wrapped(*args, **kwargs)
        return getattr(followers.metrics, method)(wrapped, args, kwargs)

    return hand_over


def _train_step(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    if followers.plan:
        followers.stepped = True
        _steps(_begin_step)
    return _metrics("train_step")(wrapped, instance, args, kwargs)


def _begin_step() -> None:
    iteration = _iteration()
    followers.steps.begin_step(iteration)
    if followers.heartbeat is not None:
        followers.heartbeat.begin_step(iteration)


def _pause(what: str) -> Wrapper:
    """Around what belongs to no iteration: evaluation, a checkpoint."""

    def pause(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        if followers.plan:
            followers.steps.begin_pause()
        heartbeat = followers.heartbeat
        if heartbeat is None:
            return _metrics("pause")(wrapped, instance, args, kwargs)
        heartbeat.begin_pause(what)
        try:
            return _metrics("pause")(wrapped, instance, args, kwargs)
        finally:
            heartbeat.end_pause()

    return pause


def _training_log(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    results = followers.results
    if results is not None:
        _windows(_end_iteration, results)
    if followers.heartbeat is not None:
        _watch(_log, followers.heartbeat)
    return _metrics("training_log")(wrapped, instance, args, kwargs)


def _log(heartbeat: Any) -> None:
    iteration = _iteration()
    heartbeat.log(iteration)
    if followers.monitor_lines is not None:
        followers.monitor_lines.write(iteration)


def _end_iteration(results: Any) -> None:
    iteration, interval = _iteration(), _megatron_args().log_interval
    # Logging a window takes W&B a moment, which is no part of the iteration.
    logs = {"logs": iteration % interval == 0}
    _metrics("pause")(results.end_iteration, None, (iteration,), logs)


def _finish_wandb(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    results = followers.results
    if results is not None:
        if followers.plan:
            # Inside `train`, at an exit interval or after a signal; a window may still be open.
            followers.steps.close()
            results.hurry()
        results.finish()
    return wrapped(*args, **kwargs)


def _leave(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    # It ends the process by os._exit, which calls nothing that waits for traces.
    if followers.plan:
        # Inside `train`, as above.
        followers.steps.close()
        if followers.results is not None:
            followers.results.hurry()
    _leaving(end_now)
    return wrapped(*args, **kwargs)


def _megatron_args() -> Any:
    return import_module(_TRAINING).get_args()


def _iteration() -> int:
    # 0-based, and set right before `train_step`, in every version.
    return int(_megatron_args().curr_iteration) + 1


_steps = Guard(Slug.PROFILING_STOPPED, "profiling stops, training goes on")
_windows = Guard(Slug.SUMMARY_FAILED, "training goes on without summaries of windows")
_leaving = Guard(Slug.EXPORT_FAILED, "the process ends without waiting for its traces")
_watch = Guard(Slug.MONITOR_FAILED, "training goes on without lines of the monitor")
"""A fork may keep its iterations elsewhere."""
_TRAINING = "megatron.training.training"
_TIMERS = "megatron.core.timers"

PATCHES = (
    Patch("megatron.training.arguments", "_add_logging_args", _add_arguments),
    Patch(_TRAINING, "train", _train),
    Patch(_TRAINING, "train_step", _train_step),
    Patch(_TRAINING, "evaluate_and_print_results", _pause("evaluation")),
    Patch(_TRAINING, "save_checkpoint_and_time", _pause("checkpoint")),
    # A name that some version lacks costs its number, never the training: hence "since".
    Patch(_TRAINING, "training_log", _training_log, OLDEST_CORE),
    Patch(_TRAINING, "print_rank_last", _metrics("print_line"), OLDEST_CORE),
    Patch(
        "megatron.core.rerun_state_machine",
        "RerunDataIterator.__next__",
        _metrics("next_batch"),
        (0, 10),
    ),
    Patch(_TIMERS, "Timers.log", _metrics("log_timers"), OLDEST_CORE),
    Patch(_TIMERS, "Timers.write", _metrics("write_timers"), OLDEST_CORE),
    Patch(_TIMERS, "Timers._get_elapsed_time_all_ranks", _metrics("gather_timers"), OLDEST_CORE),
    Patch("wandb", "finish", _finish_wandb, OLDEST_CORE),
    Patch("megatron.rl.rl_utils", "rl_inference_interface_shutdown", _leave, (0, 16)),
)
"""Inside `train` the profile is outermost and metrics innermost."""


def _flops_per_iteration(args: Any) -> int | None:
    """Megatron's own count for one global batch; None where it cannot tell, or the batch grows."""
    if batch_grows(args):
        return None
    training = import_module(_TRAINING)
    try:
        from megatron.core.num_microbatches_calculator import get_current_global_batch_size
    except ImportError:  # before core 0.8 it lay elsewhere
        get_current_global_batch_size = None
    try:
        batch = (
            get_current_global_batch_size()
            if get_current_global_batch_size
            else args.global_batch_size
        )
        return int(training.num_floating_point_operations(args, batch))
    except Exception:
        return None
