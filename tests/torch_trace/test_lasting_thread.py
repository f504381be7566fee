# SPDX-License-Identifier: Apache-2.0
"""The thread that lasts: who answers a call, at which priority, and what is held afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import weakref

import pytest

from megatron.torch_trace.system.lasting_thread import LastingThread

NICER = 3


def who() -> tuple[int, int]:
    """The thread that runs this, and its priority."""
    me = threading.get_native_id()
    return me, os.getpriority(os.PRIO_PROCESS, me)


def test_one_thread_of_lower_priority_answers_all_calls() -> None:
    thread = LastingThread("lasting", NICER)
    first, second = thread.answer(who), thread.answer(who)
    mine, priority = who()
    assert first == second
    assert first[0] != mine
    assert first[1] == min(priority + NICER, 19)


def test_what_a_call_raises_is_raised_and_the_thread_goes_on() -> None:
    thread = LastingThread("lasting", NICER)
    first = thread.answer(who)
    with pytest.raises(ZeroDivisionError):
        thread.answer(lambda: 1 // 0)
    assert thread.answer(who) == first


def test_while_it_is_at_work_another_thread_answers_and_ends() -> None:
    thread = LastingThread("lasting", NICER)
    lasting, priority = thread.answer(who)
    begun, go_on = threading.Event(), threading.Event()

    def long() -> None:
        begun.set()
        go_on.wait(300)

    caller = threading.Thread(target=thread.answer, args=(long,))
    caller.start()
    assert begun.wait(300)
    other, its_priority = thread.answer(who)
    go_on.set()
    caller.join()
    assert other not in (lasting, who()[0])
    assert its_priority == priority
    assert thread.answer(who)[0] == lasting
    named = [one for one in threading.enumerate() if one.native_id == other]
    for one in named:
        one.join(300)
    assert not [one for one in threading.enumerate() if one.native_id == other]


def test_nothing_of_a_call_is_held_until_the_next_one() -> None:
    class Large:
        pass

    thread = LastingThread("lasting", NICER)
    large = Large()
    held = weakref.ref(large)
    assert thread.answer(lambda of=large: of) is large
    del large
    deadline = time.monotonic() + 300
    while held() is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert held() is None


@pytest.mark.parametrize("at_work", [False, True], ids=["idle", "at work"])
def test_where_no_thread_can_be_had_the_caller_answers(
    monkeypatch: pytest.MonkeyPatch, at_work: bool
) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    thread = LastingThread("lasting", NICER)
    monkeypatch.setattr(threading.Thread, "start", refused)
    if at_work:
        thread._busy.acquire()
    assert thread.answer(who) == who()


FORKS = """
import os
from megatron.torch_trace.system.lasting_thread import LastingThread
thread = LastingThread("lasting", 3)
assert thread.answer(os.getpid) == os.getpid()
child = os.fork()
if not child:
    os._exit(0 if thread.answer(os.getpid) == os.getpid() else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_fork_begins_a_thread_of_its_own_and_the_process_ends_with_it() -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKS]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("0\n", "", 0)
