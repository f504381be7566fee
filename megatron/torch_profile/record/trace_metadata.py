# SPDX-License-Identifier: Apache-2.0
"""What a trace says of itself beside its events: written when a window starts, and when it ends."""

from __future__ import annotations

import json
from typing import Any

from megatron.torch_profile.plan.schedule import Window
from megatron.torch_profile.record.compilations import COUNTS, CompileWatch
from megatron.torch_profile.spans.garbage_collections import GarbageCollections
from megatron.torch_trace.analysis.timeline.span_names import COLLECTIONS_NAME

METADATA_KEY = "torch_profile"


class TraceNotes:
    """The metadata of one window.

    Args:
        profiler: recording.
        metadata: the same in every window.
        window: which.
        collections: of garbage; None has its own, for a profiler that records not every thread.
    """

    def __init__(
        self,
        profiler: Any,
        metadata: dict[str, Any],
        window: Window,
        collections: GarbageCollections | None = None,
    ) -> None:
        self._profiler = profiler
        self._metadata = {**metadata, "window": {"first": window.first, "last": window.last}}
        self._watch = CompileWatch()
        self._watch.start()
        self._collections = collections or GarbageCollections(everywhere=False)
        self._collections.start()
        self._write()

    def complete(self) -> None:
        """Add what is known only now, right before the profiler stops."""
        self.close()
        counts = zip(COUNTS, self._watch.counts(), strict=True)
        # NaN is unknown, and no JSON.
        self._metadata["compile"] = {name: int(n) for name, n in counts if n == n}
        if (told := self._collections.told) is not None:
            self._metadata[COLLECTIONS_NAME] = told
        self._write()
        self._profiler = None  # whoever exports it decides how long its result is held

    def close(self) -> None:
        """Stop watching, whether or not there will be a trace."""
        self._watch.stop()
        self._collections.close()

    def _write(self) -> None:
        # Of a key that is given twice Kineto keeps the later value.
        self._profiler.add_metadata_json(METADATA_KEY, json.dumps(self._metadata))
