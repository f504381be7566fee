# SPDX-License-Identifier: Apache-2.0
"""The page of a run, made of the parts of a window's page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from megatron.torch_trace.analysis.results.run_record import find_run
from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.report.html.page import render_sections
from megatron.torch_trace.report.run_page import windows
from megatron.torch_trace.report.run_page.history import sections_of_run
from megatron.torch_trace.report.run_page.windows import Windows
from megatron.torch_trace.report.section import Section, Subject
from megatron.torch_trace.report.sections import run
from megatron.torch_trace.wording import counted


def render_run(folder: Path, found: Windows) -> str:
    """The page as HTML.

    Args:
        folder: of the run.
        found: its windows, if it has any.

    Raises:
        UsageError: neither a window nor `run.json` tells anything of the run.
    """
    sections = list(_history(folder, needed=found.last is None))
    if found.last is not None:
        subject = Subject(found.last, find_run(found.last))
        sections += [
            windows.table(found),
            windows.changes(found),
            run.telemetry(subject),
            run.section(subject, window=Path(found.last.ranks[0].file).parent.name),
        ]
    if found.failures:
        sections.append(Section("notes", "Notes", data={"notes": found.failures}))
    head = [f"{counted(len(found.rows), 'window')} of this run."]
    return render_sections(folder.absolute().name, head, sections)


def _history(folder: Path, *, needed: bool) -> Iterator[Section]:
    """Iterations and events; nothing of a folder that is no run, unless there is nothing else."""
    try:
        yield from sections_of_run(folder)
    except UsageError:
        if needed:
            raise
