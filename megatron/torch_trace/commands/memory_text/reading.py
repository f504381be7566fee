# SPDX-License-Identifier: Apache-2.0
"""Files of `torch-trace memory`, read one after the other: of each only what is wanted stays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from megatron.torch_trace.commands import terminal
from megatron.torch_trace.errors import UsageError

if TYPE_CHECKING:
    from megatron.torch_trace.allocator.answer import MemoryAnswer
    from megatron.torch_trace.allocator.device_memory import DeviceMemory
    from megatron.torch_trace.allocator.fit.moments import Moments
    from megatron.torch_trace.allocator.pictures.picture import MemoryPicture


class Reading:
    """Answers, and beside them what a page draws and what a fit is measured by, in one order.

    Args:
        draws: pictures are wanted.
        measures: moments are wanted.
    """

    def __init__(self, *, draws: bool = False, measures: bool = False) -> None:
        self._draws, self._measures = draws, measures
        self.drawn: list[MemoryPicture] = []
        self.measured: list[Moments] = []
        self._of_file: dict[int, tuple[MemoryPicture | None, Moments | None]] = {}

    def read(self, paths: Sequence[str]) -> list[MemoryAnswer]:
        """The answers from all files that `paths` name.

        Raises:
            UsageError: see `memory`; or there is nothing in the snapshots.
        """
        from megatron.torch_trace.allocator.answer import answers_of
        from megatron.torch_trace.allocator.memory_files import find_memory_files

        files = find_memory_files(paths)
        answers: list[MemoryAnswer] = []
        with terminal.progress_of_many("memory", files) as on_read:
            for path in files:
                found = answers_of(path, on_read=on_read, on_device=self._look)
                answers += [one.without_history() for one in found]
                seen = [self._of_file[one.device] for one in found]
                self.drawn += [picture for picture, _ in seen if picture is not None]
                self.measured += [moments for _, moments in seen if moments is not None]
                self._of_file.clear()
        if not answers:
            raise UsageError(f"{paths[0]}: the snapshot is empty: no memory and no history in it.")
        return answers

    def _look(self, memory: DeviceMemory) -> None:
        from megatron.torch_trace.allocator.fit.moments import moments_of
        from megatron.torch_trace.allocator.pictures.picture import picture_of

        self._of_file[memory.device] = (
            picture_of(memory) if self._draws else None,
            moments_of(memory) if self._measures else None,
        )
