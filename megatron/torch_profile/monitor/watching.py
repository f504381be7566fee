# SPDX-License-Identifier: Apache-2.0
"""What watches the training that runs now: begun and ended around Megatron's `train`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from megatron.torch_profile.followers import followers
from megatron.torch_profile.log import Slug, warn
from megatron.torch_profile.monitor.channel import open_channel
from megatron.torch_profile.monitor.hangs.hang_watch import HangWatch
from megatron.torch_profile.monitor.heartbeat import Heartbeat
from megatron.torch_profile.monitor.iterations.marks import GpuMarks, HostMarks
from megatron.torch_profile.monitor.iterations.monitor import Monitor
from megatron.torch_profile.monitor.iterations.phase_clock import PhaseClock
from megatron.torch_profile.monitor.iterations.sampling import EVERY, Sampling
from megatron.torch_profile.monitor.iterations.seams import seams
from megatron.torch_profile.monitor.requested_steps import RequestedSteps
from megatron.torch_profile.monitor.slow_iterations import SlowIterations
from megatron.torch_profile.plan.capture_plan import CapturePlan
from megatron.torch_profile.plan.topology import CPU
from megatron.torch_profile.record.recorder import Recorder
from megatron.torch_profile.spans.window_spans import open_spans


@contextmanager
def training(capture: CapturePlan, model: Any) -> Iterator[None]:
    """Around one call of `train`, on every rank that can.

    Args:
        capture: what is recorded; its flags ask for a watch.
        model: Megatron's list of model chunks; None where it cannot be had.
    """
    with ExitStack() as stack:
        try:
            followers.heartbeat = begin(capture, model, stack)
        except Exception as error:
            # No rank waits for another one here.
            warn(
                Slug.MONITOR_FAILED,
                "rank %d trains without a watch: %s: %s",
                capture.topology.rank,
                type(error).__name__,
                error,
            )
        try:
            yield
        finally:
            heartbeat, followers.heartbeat = followers.heartbeat, None
            if heartbeat is not None:
                heartbeat.close()


def begin(capture: CapturePlan, model: Any, stack: ExitStack) -> Heartbeat:
    """Watch from now on.

    Args:
        capture: what is recorded; its flags ask for a watch.
        model: Megatron's list of model chunks; None where it cannot be had.
        stack: what is open until training ends.
    """
    config, topology = capture.config, capture.topology
    heartbeat = Heartbeat(None, _is_recorded)
    if config.monitor:
        on_cpu = topology.me.device == CPU
        clock = PhaseClock(HostMarks() if on_cpu else GpuMarks())
        sampling = Sampling(1 if on_cpu else EVERY)  # looking at the host's clock costs little
        stack.enter_context(seams(clock))
        channel = open_channel(f"{capture.run_folder.name}/monitor")
        monitor = Monitor(clock, topology, channel, config.monitor_interval, sampling)
        monitor.start()
        stack.callback(monitor.stop)
        heartbeat = Heartbeat(clock, _is_recorded, monitor, sampling)
    if "slow-iteration" in (config.trigger or ()):
        _watch_iterations(capture, heartbeat)
    if config.on_hang is not None:
        hangs = HangWatch(
            config.on_hang,
            capture.run_folder,
            topology,
            heartbeat,
            model,
            open_spans,
            heartbeat.monitor.last_iterations if heartbeat.monitor else tuple,
        )
        hangs.start()
        stack.callback(hangs.stop)
    return heartbeat


def _watch_iterations(capture: CapturePlan, heartbeat: Heartbeat) -> None:
    """On rank 0: by the monitor's numbers of all ranks, else by its own clock."""
    steps = followers.steps
    if not isinstance(steps, RequestedSteps) or steps.ask is None:
        return
    slow = SlowIterations(capture.config, steps.ask)
    if heartbeat.monitor is not None:
        heartbeat.monitor.judged.append(slow.see_judged)
    else:
        heartbeat.ended = lambda iteration, ms, disturbed: slow.see(
            iteration, ms, disturbed=disturbed
        )


def _is_recorded(iteration: int) -> bool:
    """Whether this rank profiles in an iteration."""
    steps = followers.steps
    recorder = steps.recorder if isinstance(steps, RequestedSteps) else steps
    if not isinstance(recorder, Recorder):
        return False
    window = recorder.windows.next
    return window is not None and window.first - window.warmup <= iteration
