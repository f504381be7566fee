# SPDX-License-Identifier: Apache-2.0
"""For every rank its kept analysis where that is good, else its trace.

What cannot be used is said in a line of the log, which a program that sets none up prints to
stderr; the answer is the same either way.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from megatron.torch_trace.analysis.results.analysis import SkippedFile
from megatron.torch_trace.analysis.run import kept_analysis
from megatron.torch_trace.analysis.run.kept_analysis import (
    Header,
    KeptAnalysis,
    Opened,
    UnusableError,
)
from megatron.torch_trace.analysis.run.rank import RankOutcome
from megatron.torch_trace.analysis.run.shared_values import SharedValues
from megatron.torch_trace.errors import StrictError, UsageError
from megatron.torch_trace.files.sources import (
    Sources,
    by_folder_and_rank,
    files_below,
    find_traces,
)
from megatron.torch_trace.format.file_names import (
    ARTIFACTS,
    WindowName,
    found_analysis_of,
    is_kept_analysis,
    kept_analysis_of,
    trace_of,
)
from megatron.torch_trace.wording import path_text

logger = logging.getLogger(__name__)
_AT_ONCE = 32
"""Kept analyses that are read together."""


@dataclass(slots=True)
class Gathered:
    """What is known without reading a trace.

    Args:
        traces: that must be read.
        outcomes: trace, there or not -> what its kept analysis holds.
        skipped: traces that are gone, with kept analyses that cannot be used.
    """

    traces: list[Path] = field(default_factory=list)
    outcomes: dict[Path, RankOutcome] = field(default_factory=dict)
    skipped: list[SkippedFile] = field(default_factory=list)


def find(paths: Iterable[Path | str]) -> Sources:
    """The traces that `paths` name, also those of which only a kept analysis is left.

    Raises:
        UsageError: a path does not exist, or a folder holds neither.
    """
    sources = Sources()
    for path in map(Path, paths):
        named = trace_of(path) if is_kept_analysis(path) else path
        kept = _kept(named)
        try:
            found = find_traces([named], kept.__contains__)
        except UsageError:
            if not kept:
                raise
            found = Sources()
        there = {*found.traces, *(skipped for skipped, _ in found.skipped)}
        gone = [trace for trace in kept if trace not in there and not trace.exists()]
        sources.traces += sorted([*found.traces, *gone], key=by_folder_and_rank)
        sources.skipped += found.skipped
    return sources


def _kept(path: Path) -> dict[Path, None]:
    """Traces at or below `path`, there or not, whose kept analyses are there."""
    if path.is_dir():
        return dict.fromkeys(
            trace_of(file)
            for file in files_below(path, artifacts=True)
            if is_kept_analysis(file) and file.parent.name == ARTIFACTS
        )
    return {path: None} if found_analysis_of(path).is_file() else {}


def gather(
    traces: Sequence[Path],
    *,
    step: int | None = None,
    strict: bool = False,
    on_kept: Callable[[int, int], None] | None = None,
) -> Gathered:
    """Take every kept analysis that can stand in for its trace, and say which cannot.

    Args:
        traces: there or not.
        step: kept analyses hold whole windows and cannot tell of one step.
        strict: a kept analysis of a damaged trace is refused as the trace would be.
        on_kept: for progress: how many traces were looked for, and of how many, after each.

    Raises:
        StrictError: see `strict`; of a trace that is gone.
    """
    taken: dict[Path, KeptAnalysis] = {}
    reasons: dict[Path, str] = {}
    gone: set[Path] = set()
    shared = SharedValues()
    for at in range(0, len(traces), _AT_ONCE):
        opened: dict[Path, Opened] = {}
        for number, trace in enumerate(traces[at : at + _AT_ONCE], start=at):
            if on_kept:
                on_kept(number, len(traces))
            try:
                if step is None:
                    opened[trace] = _opened(trace, gone)
                elif found_analysis_of(trace).is_file():
                    reasons[trace] = "of the whole window, not of one step"
            except FileNotFoundError:
                continue
            except UnusableError as error:
                reasons[trace] = str(error)
        for trace, kept in zip(opened, kept_analysis.read([*opened.values()]), strict=True):
            if isinstance(kept, UnusableError):
                reasons[trace] = str(kept)
                continue
            named = replace(kept.outcome.result, file=path_text(trace))
            outcome = shared.of(replace(kept.outcome, result=named))
            taken[trace] = replace(kept, outcome=outcome)
    for trace in _of_another_run(taken, gone):
        del taken[trace]
        reasons[trace] = "of another run"
    unseen = (trace for trace in traces if trace not in taken and str(trace) != "-")
    gone |= {trace for trace in unseen if not trace.exists()}
    _say([why for trace, why in reasons.items() if trace not in gone], len(gone & taken.keys()))
    result = Gathered()
    for trace in traces:
        if trace in taken and not (strict and taken[trace].outcome.result.damage):
            result.outcomes[trace] = taken[trace].outcome
        elif trace not in gone:
            # A damaged trace says itself, best, where it is damaged.
            result.traces.append(trace)
        elif trace in taken:
            damage = taken[trace].outcome.result.damage
            raise StrictError(f"{trace}: damaged: {damage}.")
        else:
            # Removed since it was found, where there never was a kept analysis.
            why = f"its kept analysis is {reasons[trace]}" if trace in reasons else "not analysed"
            reason = f"gone, and {why}"
            result.skipped.append(SkippedFile(path_text(trace), reason))
    return result


def is_fresh(trace: Path) -> bool:
    """Whether there is a kept analysis that can stand in for a trace that is there."""
    try:
        found = next(kept_analysis.read([_opened(trace, set())]))
    except (FileNotFoundError, UnusableError):
        return False
    return not isinstance(found, UnusableError)


def _opened(trace: Path, gone: set[Path]) -> Opened:
    """The kept analysis of a trace, looked into; a trace that is gone is put into `gone`.

    Raises:
        FileNotFoundError: there is none.
        UnusableError: it cannot stand in for the trace.
    """

    def check(header: Header) -> None:
        if not _is_of(header, trace):
            gone.add(trace)

    try:
        return kept_analysis.opened(kept_analysis_of(trace), check)
    except FileNotFoundError:
        return kept_analysis.opened(found_analysis_of(trace), check)


def _is_of(header: Header, trace: Path) -> bool:
    """Whether the trace is there; a kept analysis is of a trace that is gone by its names.

    Raises:
        UnusableError: it is of another one.
    """
    if header.trace.name != trace.name:
        raise UnusableError("of another trace")
    try:
        if kept_analysis.identify(trace) != header.trace:
            raise UnusableError("stale")
    except FileNotFoundError:
        folder = trace.absolute().parent.name
        if header.window and WindowName.parse(folder) and header.window != folder:
            raise UnusableError("of another window") from None
        return False
    except OSError:
        # Whoever may not read the trace may have been given the kept analysis.
        return trace.exists()
    return True


def _of_another_run(taken: dict[Path, KeptAnalysis], gone: set[Path]) -> list[Path]:
    """Those without a trace that are not of the run that most are of."""
    runs = Counter(one.header.run for one in taken.values() if one.header.run)
    if len(runs) < 2:
        return []
    run = runs.most_common(1)[0][0]
    return [
        trace for trace, one in taken.items() if one.header.run not in (run, None) and trace in gone
    ]


def _say(reasons: list[str], gone: int) -> None:
    if reasons:
        what = ", ".join(f"{count:,} {why}" for why, count in sorted(Counter(reasons).items()))
        logger.warning(
            "torch-trace: %s not used (%s); the traces are read instead.",
            "1 kept analysis is" if len(reasons) == 1 else f"{len(reasons):,} kept analyses are",
            what,
        )
    if gone:
        logger.warning(
            "torch-trace: %s used instead.",
            "1 trace is gone; its kept analysis is"
            if gone == 1
            else f"{gone:,} traces are gone; their kept analyses are",
        )
