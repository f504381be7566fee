# SPDX-License-Identifier: Apache-2.0
"""The report on a terminal: the answer first, then what to do, then the tables."""

from __future__ import annotations

from megatron.torch_trace.analysis.results import Analysis, Finding
from megatron.torch_trace.report import modules, phases, sections, work
from megatron.torch_trace.report.table import paragraph
from megatron.torch_trace.report.words import duration, percent, ranks

LEAST_WIDTH, MOST_WIDTH = 80, 100

_NAMES = {
    "tp": "tensor parallel",
    "pp": "pipeline",
    "dp": "data parallel",
    "cp": "context parallel",
    "ep": "expert parallel",
    "edp": "expert data parallel",
    "etp": "expert tensor parallel",
    "mp": "model parallel",
    "default": "default group",
    "unknown": "unknown group",
}
_LEAST_SHARE = 0.0005
_MARKS = {"high": "!!!", "medium": "!! ", "low": "!  ", "info": "i  "}


def render(analysis: Analysis, *, width: int = MOST_WIDTH, top: int = 5) -> str:
    """The report as plain text.

    Args:
        analysis: what to render.
        width: columns of the terminal; lines are 80 to 100 wide, whatever it is.
        top: rows in the tables of kernels, operators, shapes; of phases and modules twice as many.
    """
    width = max(LEAST_WIDTH, min(width, MOST_WIDTH))
    parts = [
        _head(analysis, width),
        _answer(analysis, width),
        _findings(analysis.findings, width),
        sections.breakdown(analysis, width),
        sections.communication(analysis, width),
        sections.stragglers(analysis, width),
        sections.pipeline(analysis, width),
        phases.tables(analysis, width, top),
        work.tables(analysis, width, top),
        modules.tree(analysis, width, top),
        sections.host(analysis, width),
        _notes(analysis, width),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _head(analysis: Analysis, width: int) -> list[str]:
    first, summary = analysis.ranks[0], analysis.summary
    count = len(analysis.ranks)
    parts = [f"rank {first.rank}" if count == 1 else f"{count} ranks"]
    if first.world_size and first.world_size != count:
        parts[0] += f" of {first.world_size}"
    devices = sorted({rank.device for rank in analysis.ranks if rank.device})
    parts.append(", ".join(devices) if devices else "GPU not recorded")
    if summary.steps:
        steps = len(summary.steps)
        named = f"step {summary.steps[0]}" if steps == 1 else f"steps {ranks(summary.steps)}"
        parts.append(f"{named}, {duration(summary.iteration_ns)} an iteration")
    else:
        parts.append(f"no steps marked, {duration(summary.window_ns)} of GPU work")
    mfu = analysis.mfu
    parts.append(f"MFU {percent(mfu.value)}")
    return paragraph("; ".join(parts) + ".", width)


def _answer(analysis: Analysis, width: int) -> list[str]:
    shares, idle = analysis.summary.shares, analysis.summary.idle
    if shares is None or idle is None:
        reason = next((rank.unknown for rank in analysis.ranks if rank.unknown), "")
        return paragraph(f"Where the time went is unknown. {reason}", width)
    what = "iteration" if analysis.summary.steps else "window"
    exposed = f"Exposed communication {percent(shares.exposed_communication)} of the {what}"
    of = [
        f"{_NAMES.get(name, name)} {percent(share)}"
        for name, share in analysis.summary.dimensions.items()
        if share >= _LEAST_SHARE
    ]
    exposed += f", of which {', '.join(of)}." if of else "."
    causes = sorted(
        (
            (idle.cpu, "the CPU had not launched yet"),
            (idle.data, "in the data loader"),
            (idle.sync, "after synchronising"),
            (idle.gpu, "launched but not started"),
            (idle.unknown, "unknown"),
        ),
        reverse=True,
    )
    because = [f"{percent(share)} {text}" for share, text in causes if share >= _LEAST_SHARE]
    waiting = f"Idle {percent(shares.idle)}"
    waiting += f": {', '.join(because)}." if because else "."
    computing = (
        f"Compute {percent(shares.compute)}, exposed copies {percent(shares.exposed_memory)}; "
        f"{percent(shares.overlapped_communication)} is communication hidden behind compute."
    )
    lines = (exposed, waiting, computing)
    return [part for line in lines for part in paragraph(line, width, "", "  ")]


def _findings(findings: tuple[Finding, ...], width: int) -> list[str]:
    if not findings:
        return ["FINDINGS", "  None."]
    lines = ["FINDINGS"]
    for finding in findings:
        mark = _MARKS[finding.severity]
        lines += paragraph(finding.title, width, f"  {mark} ", "      ")
        lines += paragraph(finding.advice, width, "      > ", "        ")
    return lines


def _notes(analysis: Analysis, width: int) -> list[str]:
    notes = []
    if analysis.mfu.reason:
        notes.append(f"MFU unknown: {analysis.mfu.reason}")
    elif analysis.mfu.value is not None:
        mfu = analysis.mfu
        notes.append(
            f"MFU: {mfu.model_flops:.4g} model FLOPs an iteration ({mfu.source}) / "
            f"({duration(mfu.iteration_ns)} x {mfu.gpus} GPUs x {mfu.peak_tflops:g} dense TFLOP/s)."
        )
    if analysis.missing_ranks:
        word = "ranks" if len(analysis.missing_ranks) > 1 else "rank"
        notes.append(f"No trace of {word} {ranks(analysis.missing_ranks)}.")
    for rank in analysis.ranks:
        if rank.damage:
            notes.append(f"Rank {rank.rank}: damaged: {rank.damage}.")
        if rank.odd_times:
            notes.append(f"Rank {rank.rank}: {rank.odd_times:,} events with impossible times.")
        if rank.other_devices:
            notes.append(
                f"Rank {rank.rank} used GPU {ranks(rank.other_devices)} too; only the one with the "
                "most work is analysed."
            )
    notes += [f"Skipped {one.file}: {one.reason}" for one in analysis.skipped_files]
    if not notes:
        return []
    return ["NOTES", *(line for note in notes for line in paragraph(note, width, "  ", "    "))]
