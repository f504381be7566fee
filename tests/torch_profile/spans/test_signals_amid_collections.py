# SPDX-License-Identifier: Apache-2.0
"""A signal that comes while the collector is at work: Python runs its handler in our callback."""

from __future__ import annotations

import _thread
import functools
import gc
import signal
import sys
from collections.abc import Iterator
from types import FrameType

import pytest

from megatron.torch_profile.spans.garbage_collections import GarbageCollections


@pytest.fixture(autouse=True)
def nobody_elses_callbacks() -> Iterator[None]:
    """Python drops what is raised in those, and in finalizers of older garbage, too."""
    others, gc.callbacks[:] = [*gc.callbacks], []
    hook, handler = sys.unraisablehook, signal.getsignal(signal.SIGTERM)
    gc.disable()
    gc.collect()
    yield
    gc.enable()
    signal.signal(signal.SIGTERM, handler)
    left, gc.callbacks[:] = [*gc.callbacks], others
    assert (left, sys.unraisablehook) == ([], hook)


class Signalled:
    """Garbage for the collector alone, which sends a signal when it is collected."""

    __del__ = functools.partial(_thread.interrupt_main, signal.SIGTERM)

    def __init__(self) -> None:
        self.itself = self


class AskedError(Exception):
    """What the handler of a user's signal raises."""


def collect_and_go_on() -> None:
    gc.collect()
    for _ in range(3):  # between two instructions of these
        pass


def test_what_a_handler_raises_amid_a_collection_reaches_training() -> None:
    def handler(number: int, frame: FrameType | None) -> None:
        raise AskedError(number)

    signal.signal(signal.SIGTERM, handler)
    recorded = GarbageCollections(everywhere=False)
    recorded.start()
    for _ in range(3):
        Signalled()
        with pytest.raises(AskedError, match=str(int(signal.SIGTERM))):
            collect_and_go_on()
    recorded.close()
    assert recorded.told is not None
    assert recorded.told["collections"] == 3


def test_a_window_that_a_signal_closes_amid_a_collection_leaves_nothing_behind() -> None:
    recorded = GarbageCollections(everywhere=False)

    def handler(number: int, frame: FrameType | None) -> None:
        recorded.close()
        raise AskedError

    signal.signal(signal.SIGTERM, handler)
    recorded.start()
    Signalled()
    with pytest.raises(AskedError):
        collect_and_go_on()
