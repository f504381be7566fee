# SPDX-License-Identifier: Apache-2.0
"""Pieces made in a thread while earlier ones are used: unpacking and writing take turns otherwise.

Both let go of Python's lock, so they really run at once. What makes short pieces of its own, such
as parsing, gains nothing from it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator

_PIECES = 8


def ahead(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same pieces in the same order; at most eight are made before they are asked for.

    An error in making them is raised after those before it. Whoever stops early ends the thread.
    """
    made: queue.SimpleQueue[bytes | BaseException | None] = queue.SimpleQueue()
    room = threading.Semaphore(_PIECES)
    stopped = threading.Event()

    def make() -> None:
        try:
            for piece in pieces:
                room.acquire()
                if stopped.is_set():
                    return
                made.put(piece)
            made.put(None)
        except BaseException as error:
            made.put(error)

    thread = threading.Thread(target=make, name="ahead", daemon=True)
    thread.start()
    try:
        while (piece := made.get()) is not None:
            if isinstance(piece, BaseException):
                raise piece
            yield piece
            room.release()
    finally:
        stopped.set()
        room.release()
        thread.join()
