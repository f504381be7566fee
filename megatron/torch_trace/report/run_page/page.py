# SPDX-License-Identifier: Apache-2.0
"""The page of a run, made of the parts of a window's page."""

from __future__ import annotations

from pathlib import Path

from megatron.torch_trace.analysis.results.run_record import find_run
from megatron.torch_trace.report.html.page import render_sections
from megatron.torch_trace.report.run_page import windows
from megatron.torch_trace.report.run_page.windows import Windows
from megatron.torch_trace.report.section import Section, Subject
from megatron.torch_trace.report.sections import run
from megatron.torch_trace.wording import counted


def render_run(folder: Path, found: Windows) -> str:
    """The page as HTML.

    Args:
        folder: of the run.
        found: its windows, of which at least one could be analysed.
    """
    assert found.last is not None
    subject = Subject(found.last, find_run(found.last))
    sections: list[Section] = [
        windows.table(found),
        windows.changes(found),
        run.telemetry(subject),
        run.section(subject),
    ]
    if found.failures:
        sections.append(Section("notes", "Notes", data={"notes": found.failures}))
    head = [f"{counted(len(found.rows), 'window')} of this run."]
    return render_sections(folder.absolute().name, head, sections)
