# SPDX-License-Identifier: Apache-2.0
"""A page of `torch-trace view` in Chromium, and what the browser told about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Visit:
    """One page and what the browser told about it."""

    page: Any
    address: str
    """Without the token: the cookie is enough."""
    console: list[str] = field(default_factory=list)
    answered: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)

    def see(self, page: Any) -> None:
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.console.append(f"uncaught: {error}"))
        page.on("requestfinished", lambda request: self.answered.add(request.url))
        page.on("requestfailed", lambda one: self.refused.update({one.url: one.failure}))

    def _note(self, message: Any) -> None:
        if message.type == "error":
            self.console.append(f"{message.text} ({message.location.get('url', '')})")

    def width(self) -> int:
        """Of what is on the page, in pixels."""
        return int(self.page.evaluate("document.documentElement.scrollWidth"))

    def perfetto(self, expression: str) -> object:
        """What an expression gives inside of Perfetto."""
        frame = next(one for one in self.page.frames if "/ui/" in one.url)
        return frame.evaluate(expression)

    def visible(self) -> tuple[int, int]:
        """(start, duration) that the timeline shows, ns."""
        start, duration = self.perfetto(
            "(() => { const shown = app.trace.timeline.visibleWindow;"
            " return [String(shown.start.integral), String(shown.duration)]; })()"
        )
        return int(start), int(float(duration))

    def moment_of(self, element: Any) -> tuple[int, int, int]:
        """(rank, start, end) that an element of the report names, ns of the timeline."""
        rank, start, duration = element.evaluate(
            "one => [one.dataset.rank, one.dataset.start, one.dataset.duration]"
        )
        offsets = self.page.request.get(f"{self.address}offsets").json()["offset_ns"]
        begin = int(start) + offsets[rank]
        return int(rank), begin, begin + int(duration)
