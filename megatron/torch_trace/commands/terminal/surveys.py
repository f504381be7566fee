# SPDX-License-Identifier: Apache-2.0
"""What `info` and `check` share: each trace is surveyed, with a bar."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from megatron.torch_trace.commands import terminal
from megatron.torch_trace.files.sources import Sources
from megatron.torch_trace.reader import available_cores
from megatron.torch_trace.reader.workers import started_early

if TYPE_CHECKING:
    from megatron.torch_trace.inspect.survey import Survey


def surveys_of(sources: Sources, jobs: int | None, **options: Any) -> list[Survey]:
    """The survey of each trace; `options` are those of `survey`."""
    workers = jobs or available_cores()
    with started_early(workers - 1, sources.traces, "megatron.torch_trace.inspect.block_survey"):
        # Imported here: meanwhile the other processes do the same.
        from megatron.torch_trace.inspect.survey import survey

        found = []
        for path in sources.traces:
            with terminal.progress(path.name, path) as on_read:
                found.append(survey(path, workers=workers, on_read=on_read, **options))
        return found
