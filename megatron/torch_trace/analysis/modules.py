# SPDX-License-Identifier: Apache-2.0
"""GPU work of the forward pass by the module that launched it.

Modules are the spans that `--torch-profile-spans modules` puts into a trace,
`decoder.layers.3.mlp: MLP`. The backward pass runs outside of them and is not counted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.analysis.activity import NONE
from megatron.torch_trace.analysis.codes import present, rows_with
from megatron.torch_trace.analysis.intervals import ints
from megatron.torch_trace.analysis.timeline import Timeline, nesting_of

_SPAN = re.compile(r"(?P<path>[A-Za-z_]\w*(?:\.\w+)*): (?P<type>[A-Za-z_]\w*)")


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """One module.

    Args:
        module: dotted path; type: its class.
        calls: spans in the window.
        self_ns: sum of GPU work launched in it, in no module below it.
        time_ns: the same, modules below it included.
        kernels: pieces of work, modules below included.
    """

    module: str
    type: str
    calls: int
    self_ns: int
    time_ns: int
    kernels: int


def module_rows(timeline: Timeline) -> tuple[ModuleRow, ...]:
    """Every module with a span in the window, by path."""
    activity, window = timeline.activity, timeline.window
    spans = {}
    for code, name in enumerate(activity.names):
        match = _SPAN.fullmatch(name)
        if match:
            spans[code] = (match["path"], match["type"])
    ops = activity.ops
    mask = rows_with(ops.name, spans, len(activity.names)) & ops.annotation
    mask &= (ops.start >= window.start) & (ops.start < window.end)
    if not mask.any():
        return ()
    rows = np.flatnonzero(timeline.in_window)
    launches = timeline.launches
    span = nesting_of(ops, mask).innermost(launches.track[rows], launches.time[rows])
    inside = span != NONE
    code = ops.name[span[inside]]
    own: dict[str, list[int]] = {}
    for one in present(code):
        mine = rows[inside][code == one]
        own[spans[one][0]] = [int(timeline.clipped[mine].sum()), len(mine)]
    calls = dict(zip(*np.unique(ops.name[mask], return_counts=True), strict=True))
    result = []
    for one, (path, kind) in spans.items():
        below = [v for p, v in own.items() if p == path or p.startswith(f"{path}.")]
        time, kernels = ints(below).reshape(-1, 2).sum(axis=0).tolist()
        result.append(
            ModuleRow(path, kind, int(calls.get(one, 0)), own.get(path, [0])[0], time, kernels)
        )
    return tuple(sorted(result, key=lambda row: row.module))
