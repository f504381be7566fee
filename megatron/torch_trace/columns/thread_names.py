# SPDX-License-Identifier: Apache-2.0
"""What the trace calls its tracks: events that only tell a name."""

from __future__ import annotations

import numpy as np

from megatron.torch_trace.columns.builder import BlockView
from megatron.torch_trace.format.json_text import value_of
from megatron.torch_trace.format.tracks import Track


def thread_names(view: BlockView) -> dict[Track, str]:
    """Track -> name, of those that a block names."""
    found: dict[Track, str] = {}
    for number, kind in enumerate(view.kinds):
        if kind.phase != "M":
            continue
        for row in np.flatnonzero(view.kind == number).tolist():
            event = view.events[row]
            if event.name == "thread_name":
                args = value_of(bytes(event.args) or b"{}")
                name = args.get("name") if isinstance(args, dict) else None
                if isinstance(name, str):
                    found[event.pid, event.tid] = name.strip()
    return found
