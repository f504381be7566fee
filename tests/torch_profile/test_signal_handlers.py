# SPDX-License-Identifier: Apache-2.0
"""Handlers of signals that belong to training: what they raise is for training."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType

import pytest

from megatron.torch_profile.guard import Guard
from megatron.torch_profile.log import Slug
from megatron.torch_profile.signal_handlers import HeldHandlers


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    numbers = (signal.SIGCHLD, signal.SIGALRM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def late(number: int, frame: FrameType | None) -> None:
    raise TimeoutError("the step takes too long")


def other(number: int, frame: FrameType | None) -> None:
    """A handler that raises nothing."""


class Deadline:
    def __call__(self, number: int, frame: FrameType | None) -> None:
        late(number, frame)

    def passed(self, number: int, frame: FrameType | None) -> None:
        late(number, frame)


def bound(seconds: int, number: int, frame: FrameType | None) -> None:
    late(number, frame)


@pytest.mark.parametrize(
    "handler",
    [late, Deadline(), Deadline().passed, partial(bound, 3)],
    ids=lambda one: str(type(one)),
)
def test_what_a_handler_raises_amid_our_code_reaches_training_and_profiling_goes_on(
    handler: Callable[[int, FrameType | None], None],
) -> None:
    guard = Guard(Slug.PROFILING_STOPPED, "training goes on")
    signal.signal(signal.SIGALRM, handler)
    with pytest.raises(TimeoutError):
        guard(signal.raise_signal, signal.SIGALRM)
    assert not guard.failed
    assert guard(lambda: 5) == 5


def test_the_same_exception_of_our_own_is_a_failure() -> None:
    guard = Guard(Slug.PROFILING_STOPPED, "training goes on")
    signal.signal(signal.SIGALRM, other)
    assert guard(late, signal.SIGALRM, None) is None
    assert guard.failed


def test_a_held_handler_runs_once_when_it_is_replayed_and_then_as_before() -> None:
    served: list[int] = []
    signal.signal(signal.SIGCHLD, lambda number, _: served.append(number))
    with HeldHandlers() as held:
        signal.raise_signal(signal.SIGCHLD)
        signal.raise_signal(signal.SIGCHLD)
        assert served == []
    held.replay()
    held.replay()
    assert served == [signal.SIGCHLD]
    signal.raise_signal(signal.SIGCHLD)
    assert served == [signal.SIGCHLD] * 2


def test_who_presses_ctrl_c_is_heard_and_a_handler_set_meanwhile_stays() -> None:
    signal.signal(signal.SIGALRM, late)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
    with HeldHandlers(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    with HeldHandlers():
        signal.signal(signal.SIGALRM, other)
    assert signal.getsignal(signal.SIGALRM) is other


def test_a_thread_holds_nothing() -> None:
    signal.signal(signal.SIGALRM, late)
    seen: list[object] = []

    def hold() -> None:
        with HeldHandlers():
            seen.append(signal.getsignal(signal.SIGALRM))

    thread = threading.Thread(target=hold)
    thread.start()
    thread.join()
    assert seen == [late]
