# SPDX-License-Identifier: Apache-2.0
"""A bounded wait for a thread, also on a machine that stands still meanwhile."""

from __future__ import annotations

import threading

from megatron.torch_trace.system.patience import joined


def test_a_thread_that_ends_is_waited_for_and_one_that_does_not_is_given_up() -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    assert not joined(thread, 0.05)
    over.set()
    assert joined(thread, 300)


class Frozen(threading.Thread):
    """Ends in its third moment; all time passes in the first one, in which the machine sleeps."""

    def __init__(self) -> None:
        super().__init__()
        self.moments = 0

    def join(self, timeout: float | None = None) -> None:
        self.moments += 1

    def is_alive(self) -> bool:
        return self.moments < 3


def test_a_machine_that_stood_still_is_nobody_who_does_not_answer() -> None:
    assert joined(Frozen(), 5.0)
