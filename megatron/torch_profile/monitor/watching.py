# SPDX-License-Identifier: Apache-2.0
"""What watches the training that runs now: begun and ended around Megatron's `train`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from megatron.torch_profile.followers import followers
from megatron.torch_profile.log import Slug, warn
from megatron.torch_profile.monitor.hangs.hang_watch import HangWatch
from megatron.torch_profile.monitor.heartbeat import Heartbeat
from megatron.torch_profile.plan.capture_plan import CapturePlan
from megatron.torch_profile.spans.window_spans import open_spans


@contextmanager
def training(capture: CapturePlan, model: Any) -> Iterator[None]:
    """Around one call of `train`, on every rank that can.

    Args:
        capture: what is recorded; its flags ask for a watch.
        model: Megatron's list of model chunks; None where it cannot be had.
    """
    hangs: HangWatch | None = None
    try:
        followers.heartbeat = heartbeat = Heartbeat()
        limit = capture.config.on_hang
        if limit is not None:
            hangs = HangWatch(
                limit, capture.run_folder, capture.topology, heartbeat, model, open_spans
            )
            hangs.start()
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
        followers.heartbeat = None
        if hangs is not None:
            hangs.stop()
