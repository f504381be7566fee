# SPDX-License-Identifier: Apache-2.0
"""Names of files to write: one that promises another format than its command writes is a slip."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from megatron.torch_trace.errors import UsageError

_COMPRESSED = {".gz", ".zst"}
_FORMATS = {
    *(".html", ".htm", ".md", ".markdown", ".pdf", ".txt", ".log", ".docx", ".xlsx", ".ipynb"),
    *(".json", ".jsonl", ".csv", ".tsv", ".parquet", ".arrow", ".sqlite", ".db", ".yaml", ".yml"),
    *(".pftrace", ".perfetto-trace", ".nsys-rep", ".qdrep", ".pickle", ".pkl", ".pt", ".pth"),
    *(".png", ".jpg", ".jpeg", ".svg", ".gif", ".zip", ".tar", ".tgz", ".bz2", ".xz", ".7z"),
}
"""Endings that mean something; any other is part of a name."""


def ending(name: str) -> str:
    """What a name promises, in lower case: `.html` of `Report.HTML.gz`; empty if nothing."""
    suffixes = [suffix.lower() for suffix in Path(name).suffixes]
    while suffixes and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    return suffixes[-1] if suffixes and suffixes[-1] in _FORMATS else ""


def only(*endings: str, says: str) -> Callable[[str], None]:
    """For `options.output(refuse=...)` of a command that writes one kind of file.

    Args:
        endings: those that its files may have; a name without a known ending is fine, too.
        says: what the command writes, and how to name the file.
    """

    def refuse(name: str) -> None:
        promised = ending(name)
        if promised and promised not in endings:
            raise UsageError(f"--output {name}: {says}.")

    return refuse


TRACE = only(
    ".json",
    says="a trace is JSON; name the file .json, .json.gz or .json.zst (`torch-trace convert` "
    "writes .pftrace)",
)
REPORT = only(
    *(".html", ".htm", ".md", ".markdown"),
    says="a report is HTML or Markdown; name the file .html or .md",
)
PAGE = only(".html", ".htm", says="this command writes an HTML page; name the file .html")
TIMELINE = only(
    *(".pftrace", ".perfetto-trace"),
    says="a timeline is for Perfetto; name the file .pftrace or .pftrace.gz (`torch-trace merge` "
    "writes JSON)",
)
