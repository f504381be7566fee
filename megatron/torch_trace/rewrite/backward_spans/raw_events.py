# SPDX-License-Identifier: Apache-2.0
"""What drawing needs of a raw trace, taken out of the text as it streams by."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from megatron.torch_trace.columns.intervals import Ints

OPERATOR, ANNOTATION, CALL, GPU = range(4)
KINDS = {
    b"cpu_op": OPERATOR,
    b"user_annotation": ANNOTATION,
    **dict.fromkeys((b"cuda_runtime", b"cuda_driver"), CALL),
    **dict.fromkeys((b"kernel", b"gpu_memcpy", b"gpu_memset"), GPU),
}
"""What an event is good for, by its category."""
ENGINE = b"autograd::engine::evaluate_function: "
SEQUENCE, THREAD = b'"Sequence number": ', b'"Fwd thread id": '
CORRELATION = b'"correlation": '
LAUNCH, MEMORY = b"aunch", b"Mem"
"""One of them is in the name of a call that may launch something."""
NONE = -1
_WIDTHS = {OPERATOR: 6, ANNOTATION: 4, CALL: 3, GPU: 4}


class RawEvents:
    """Columns of numbers, and the texts that their codes stand for.

    Attributes:
        operators: start, end, name, track, sequence, forward thread; those with a number, and what
            autograd's engine runs.
        annotations: start, end, name, track.
        calls: start, track, correlation; runtime and driver calls that may launch something.
        gpu: start, end, track, correlation; kernels, copies and memsets.
        names: as written, by code.
        tracks: process and thread, or device and stream, as written, by code.
    """

    def __init__(self) -> None:
        self.names: dict[bytes, int] = {}
        self.tracks: dict[tuple[bytes, bytes], int] = {}
        self._pieces: dict[int, list[Ints]] = {
            kind: [np.zeros((width, 0), dtype=np.int64)] for kind, width in _WIDTHS.items()
        }

    def add(self, kind: int, columns: Iterable[Iterable[int]] | Ints) -> None:
        """Events of one kind, in the order of the text.

        Args:
            kind: one of `KINDS`.
            columns: an array of shape (columns, events).
        """
        found = np.asarray(columns, dtype=np.int64)
        if found.size:
            self._pieces[kind].append(found)

    @property
    def operators(self) -> Ints:
        """See above, as the others."""
        return self._columns(OPERATOR)

    @property
    def annotations(self) -> Ints:
        return self._columns(ANNOTATION)

    @property
    def calls(self) -> Ints:
        return self._columns(CALL)

    @property
    def gpu(self) -> Ints:
        return self._columns(GPU)

    def name(self, written: bytes) -> int:
        """The code of a name."""
        return self.names.setdefault(written, len(self.names))

    def track(self, process: bytes, thread: bytes) -> int:
        """The code of a track."""
        return self.tracks.setdefault((process, thread), len(self.tracks))

    def _columns(self, kind: int) -> Ints:
        pieces = self._pieces[kind]
        if len(pieces) > 1:
            pieces[:] = [np.concatenate(pieces, axis=1)]
        return pieces[0]
