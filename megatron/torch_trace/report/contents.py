# SPDX-License-Identifier: Apache-2.0
"""The sections of a report in their order, and what shows them: a new section is a line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from megatron.torch_trace.report.per_iteration import in_an_iteration, steps_by_rank
from megatron.torch_trace.report.section import Section, Subject
from megatron.torch_trace.report.sections import (
    breakdown,
    communication,
    cpu,
    findings,
    host,
    idle,
    memory,
    modules,
    over_time,
    phases,
    pipeline,
    run,
    stragglers,
    work,
)
from megatron.torch_trace.report.tables import Medium

_PAGE, _WRITTEN, _ALL = Medium.PAGE, Medium.WRITTEN, Medium.ALL

CONTENTS: tuple[tuple[Callable[[Subject], Section], Medium], ...] = (
    (breakdown.section, _ALL),
    (findings.section, _PAGE),  # a terminal and a document have them right below the answer
    (cpu.section, _ALL),
    (breakdown.steps, _ALL),
    (over_time.section, _PAGE),
    (communication.section, _ALL),
    (stragglers.section, _ALL),
    (pipeline.section, _ALL),
    (modules.section, _ALL),
    (phases.section, _ALL),
    (work.section, _ALL),
    (idle.section, _ALL),
    (host.section, _ALL),
    (memory.section, _WRITTEN),  # a terminal has it from `torch-trace memory`
    (run.telemetry, _PAGE),
    (run.section, _PAGE),
    (run.notes, _PAGE),  # the others end with the sentences of the notes alone
)


def sections(subject: Subject, medium: Medium) -> list[Section]:
    """What this medium shows, those with nothing to show too; sums are those of an iteration."""
    steps = steps_by_rank(subject.analysis)
    made = [make(subject) for make, media in CONTENTS if medium in media]
    if max(steps.values(), default=1) < 2:
        return made
    return [
        replace(one, tables=[in_an_iteration(table, steps) if table else None for table in tables])
        if (tables := list(one.tables))
        else one
        for one in made
    ]
