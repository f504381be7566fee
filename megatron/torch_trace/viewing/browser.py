# SPDX-License-Identifier: Apache-2.0
"""The user's browser, opened at an address that nobody else may learn.

Every user of a machine sees the arguments of all programs, so the browser is given a file that only
its user can read, and that leads on.
"""

from __future__ import annotations

import html
import os
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def opened_at(url: str) -> Iterator[None]:
    """Open the browser at `url`, if there is a screen; the file that leads there stays as long."""
    if not _has_a_screen():
        yield
        return
    with TemporaryDirectory(prefix="torch-trace-view-", ignore_cleanup_errors=True) as folder:
        page = Path(folder) / "open.html"
        there = html.escape(url)
        page.write_text(
            f'<!doctype html><meta http-equiv="refresh" content="0; url={there}">'
            f'<a href="{there}">torch-trace view</a>\n'
        )
        webbrowser.open(page.as_uri())
        yield


def _has_a_screen() -> bool:
    """Without one, a browser of the terminal would open, and show nothing of it."""
    if sys.platform == "darwin":
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
