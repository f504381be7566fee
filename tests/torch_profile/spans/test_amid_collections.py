# SPDX-License-Identifier: Apache-2.0
"""What comes while the collector is at work: a signal, whose handler Python runs in our callback,
an exception for another thread, a failure of ours, the end of the window."""

from __future__ import annotations

import _thread
import ctypes
import functools
import gc
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from megatron.torch_profile.signal_handlers import PassedOn
from megatron.torch_profile.spans import garbage_collections
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


def test_what_another_thread_is_asked_to_raise_amid_a_collection_is_not_trainings() -> None:
    """As libraries end a function of theirs that takes too long; Python drops it there."""
    dropped: list[Any] = []

    def collects() -> None:
        class Asked(Signalled):
            __del__ = functools.partial(
                ctypes.pythonapi.PyThreadState_SetAsyncExc,
                ctypes.c_ulong(threading.get_ident()),
                ctypes.py_object(AskedError),
            )

        Asked()
        collect_and_go_on()

    def the_users(unraisable: Any) -> None:
        dropped.append(unraisable.exc_type)

    before, sys.unraisablehook = sys.unraisablehook, the_users
    recorded = GarbageCollections(everywhere=False)
    recorded.start()
    thread = threading.Thread(target=collects)
    thread.start()
    thread.join()
    collect_and_go_on()
    recorded.close()
    sys.unraisablehook = before
    assert dropped == [AskedError]


def drop(error: Exception, of: Any) -> None:
    """What Python does with an exception of a callback."""
    sys.unraisablehook(SimpleNamespace(exc_value=error, object=of, err_msg=None))  # type: ignore[arg-type]


def test_two_exceptions_before_training_goes_on_reach_it_one_after_the_other() -> None:
    def callback() -> None:
        drop(AskedError(1), callback)
        drop(AskedError(2), callback)

    def training() -> None:
        try:
            callback()
            collect_and_go_on()
        finally:
            collect_and_go_on()

    passed_on = PassedOn(callback, lambda: None)
    passed_on.open()
    with pytest.raises(AskedError) as raised:
        training()
    passed_on.close()
    first = raised.value.__context__
    assert isinstance(first, AskedError)
    assert (first.args, raised.value.args) == ((1,), (2,))


def test_python_3_14_names_the_callback_in_its_message_alone() -> None:
    def callback() -> None:
        text = f"Exception ignored while calling GC callback {callback!r}"
        told = SimpleNamespace(exc_value=AskedError(1), object=None, err_msg=text)
        sys.unraisablehook(told)  # type: ignore[arg-type]

    def training() -> None:
        callback()
        collect_and_go_on()

    passed_on = PassedOn(callback, lambda: None)
    passed_on.open()
    with pytest.raises(AskedError):
        training()
    passed_on.close()


def test_a_failure_amid_a_collection_does_not_hold_the_end_of_the_window(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recorded = GarbageCollections(everywhere=True)

    def fails(name: str) -> None:
        raise OSError("no range")

    def collects() -> None:
        recorded.start()
        gc.callbacks[-1]("start", {"generation": 2})
        monkeypatch.setattr(garbage_collections, "begin", fails)
        gc.callbacks[-1]("start", {"generation": 2})
        recorded.close()

    thread = threading.Thread(target=collects, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert len(caplog.records) == 1


def test_a_span_ends_on_its_own_thread_where_the_window_closes_amid_its_collection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Left open, it would end when the next window is recorded, in memory that is none any more."""
    ended: list[int] = []
    finalizes, closed = threading.Event(), threading.Event()

    class Slow:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            finalizes.set()
            closed.wait(10)

    def collects() -> None:
        Slow()
        gc.collect()

    monkeypatch.setattr(garbage_collections, "begin", lambda name: name)
    monkeypatch.setattr(
        garbage_collections, "end", lambda begun: ended.append(threading.get_ident())
    )
    gc.collect()
    recorded = GarbageCollections(everywhere=True)
    recorded.start()
    callback = gc.callbacks[-1]
    thread = threading.Thread(target=collects)
    thread.start()
    assert finalizes.wait(10)
    recorded.close()
    closed.set()
    thread.join()
    assert ended == [thread.ident]
    recorded.close()
    assert callback not in gc.callbacks
