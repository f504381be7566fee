# SPDX-License-Identifier: Apache-2.0
"""Where the page of `torch-trace view` finds Perfetto and the timeline."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ViewLinks:
    """URL paths on the server that serves the page; all begin with `/`.

    Args:
        ui: the Perfetto UI: `/ui/`.
        timeline: the timeline that it opens: `/timeline.pftrace.gz`.
        alone: the page of the timeline alone: `/timeline`.
        offsets: answers `{"state": "ready" | "converting" | "failed", "message": "...",
            "offset_ns": {"0": 0, ...}}`: what is added to ns of a rank's trace to get ns of the
            timeline. It is asked until the timeline is ready. Where the timeline does not show all
            ranks, it also has `timeline` (its path), `ranks` and `shown` (`0-3, 8`), `most`, and
            `loading` (state and message of the one being made, or null).
        ranks: where other ranks are asked for, by POST; empty if nowhere.
    """

    ui: str
    timeline: str
    alone: str
    offsets: str
    ranks: str = ""
