# SPDX-License-Identifier: Apache-2.0
"""`whatif`: what an iteration would take after changes, and which path it could not avoid."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron.torch_trace.analysis.gpu_work.mfu import Mfu
from megatron.torch_trace.analysis.replay.answers import Graph, PathPiece, Slack
from megatron.torch_trace.analysis.replay.change import Change, Overlapped
from megatron.torch_trace.analysis.replay.change_parser import read, read_text
from megatron.torch_trace.analysis.replay.change_values import MOST_FACTOR
from megatron.torch_trace.analysis.replay.simulated_times import SimulatedTimes
from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.analysis.run.candidates import (
    Candidate,
    candidate_of,
    candidates_of,
    check,
    missed_ns,
    times_the_tokens,
)
from megatron.torch_trace.analysis.run.graphs import Graphs, KernelAnswers, are_few
from megatron.torch_trace.analysis.run.recorded import Recorded, recorded
from megatron.torch_trace.analysis.run.together import together
from megatron.torch_trace.analysis.run.undisturbed_cost import Calibration
from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.wording import counted


@dataclass(frozen=True, slots=True)
class Speed:
    """What an iteration's time means for training; None where the traces do not tell."""

    tokens_per_s: float | None
    mfu: float | None


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The answer; times are ns an iteration.

    Args:
        changes: what was asked for, as a user writes it.
        graph: `kernels` or `spans`.
        ranks: how many the graph has.
        recorded_ns: the mean over the recorded steps.
        replayed_ns: the same by the graph, without a change.
        simulated_ns: by the graph, with `changes`.
        error_ns: by how much the graph misses the recorded steps at most, and of `simulated_ns`.
        undisturbed_ns: without the profiler: as measured, and with changes as predicted; None where
            the run has too few iterations without it, or the graph cannot take its cost away.
        inferred_edges: dependencies that the traces do not tell.
        candidates: the changes together if some were asked for, else what may be worth it, by gain.
        critical_path: of the simulated iteration.
        other_path: another one that is within the error of it; empty if there is none.
        other_path_shorter_ns: by so much it is shorter.
        slack: of the recorded ranks, spans and collectives, by how much each could be later without
            the iteration ending later.
        before, after: speed as recorded and as simulated, undisturbed where that is known.
        notes: what to know about it, in sentences.
        damaged_files, skipped_files: traces that the answer has only in part, or not at all.
        times: of each rank, when everything happens; empty unless asked for.
    """

    changes: tuple[str, ...]
    graph: str
    ranks: int
    recorded_ns: int
    replayed_ns: int
    simulated_ns: int
    error_ns: int
    undisturbed_ns: int | None
    inferred_edges: int
    candidates: tuple[Candidate, ...]
    critical_path: tuple[PathPiece, ...]
    other_path: tuple[PathPiece, ...]
    other_path_shorter_ns: int
    slack: Slack
    before: Speed
    after: Speed
    notes: tuple[str, ...] = ()
    damaged_files: tuple[str, ...] = ()
    skipped_files: tuple[str, ...] = ()
    times: tuple[SimulatedTimes, ...] = ()


def whatif(
    path: Path | str | Iterable[Path | str],
    *changes: str | Change,
    model_flops: float | None = None,
    jobs: int | None = None,
    on_start: Callable[[list[Path]], None] | None = None,
    on_done: Callable[[Path], None] | None = None,
    on_kept: Callable[[int, int], None] | None = None,
    with_times: bool = False,
    **flags: str | int | Sequence[str],
) -> WhatIf:
    """What an iteration would take after changes; without changes, what may be worth one.

    Args:
        path: as for `analyze`.
        changes: as on the command line, `"--rank 2=median"`, or typed.
        model_flops, jobs, on_start, on_done, on_kept: see `analyze`.
        with_times: find when everything happens too, which `rewrite.simulated_trace` writes.
        flags: the same by name: `rank="2=median"`, `micro_batches=16`, `comm=["tp*0.5", "dp*0"]`.

    Returns:
        The answer, times in ns an iteration; docs/whatif.md defines the graphs and the error.

    Raises:
        UsageError: a change is wrong, or of what the traces do not have; or see `analyze`.
        UnreplayableError: the traces do not hold what is needed, or the graph misses the recorded
            iteration by more than 2 %.

    Example:
        answer = torch_trace.whatif("torch_profile/20261127-221810/iter-0000003", rank="2=median")
        print(answer.recorded_ns, answer.simulated_ns, answer.error_ns)
    """
    wanted = [one if isinstance(one, Change) else read_text(one) for one in changes]
    wanted += _of_flags(flags)
    _answerable(wanted)
    needs_kernels = not any(one.of_spans for one in wanted)
    known = recorded(
        path,
        jobs=jobs,
        on_start=on_start,
        on_done=on_done,
        on_kept=on_kept,
        keeps=are_few if needs_kernels else None,
    )
    return answer(known, together(known, model_flops), wanted, on_done, with_times=with_times)


def answer(
    known: Recorded,
    analysis: Analysis,
    changes: Sequence[Change],
    on_read: Callable[[Path], None] | None = None,
    *,
    with_times: bool = False,
) -> WhatIf:
    """The answer from ranks that are analysed; see `whatif`.

    Args:
        known, analysis: of the ranks.
        changes: what was asked for.
        on_read: called with each trace that is read once more, for the graph of kernels.
        with_times: see `whatif`.
    """
    _answerable(changes)
    graphs = Graphs(known, on_read)
    name, graph = graphs.for_changes(changes)
    check(graph, changes)
    simulated = graph.simulate(changes)
    calibration = graphs.calibration_of(graph)
    undisturbed = calibration.iteration_ns(graph, changes) if calibration else None
    candidates = (
        [candidate_of(graph, changes, None, graphs)] if changes else candidates_of(graphs, analysis)
    )
    other_path, shorter = graphs.other_path(name, changes)
    return WhatIf(
        changes=tuple(one.text for one in changes),
        graph=name,
        ranks=len(graphs.ranks_of(name)),
        recorded_ns=graph.recorded_ns,
        replayed_ns=graph.simulated_ns,
        simulated_ns=simulated.iteration_ns,
        error_ns=candidates[0].error_ns if changes else max(graph.error_ns, missed_ns(graph)),
        undisturbed_ns=undisturbed,
        inferred_edges=graphs.inferred_edges(name),
        candidates=tuple(candidates),
        critical_path=tuple(simulated.critical_path),
        other_path=tuple(other_path),
        other_path_shorter_ns=shorter,
        slack=graphs.slack(name),
        before=_speed(analysis.mfu, _usual(analysis, calibration, graph.recorded_ns), 1.0),
        after=_speed(
            analysis.mfu, undisturbed or simulated.iteration_ns, times_the_tokens(graph, changes)
        ),
        notes=(*graphs.notes, *_absences(graphs.absent_calls(name)), *_estimates(changes)),
        damaged_files=tuple(one.file for one in analysis.ranks if one.damage),
        skipped_files=tuple(one.file for one in analysis.skipped_files),
        times=_times(graph, changes) if with_times else (),
    )


def _absences(calls: int) -> Iterable[str]:
    if calls:
        yield (
            f"{counted(calls, 'kernel')} of collectives had partners in ranks without a trace: "
            "what they waited for these counts as communication, so a change of the communication "
            "gains less than is told."
        )


def _times(graph: Graph, changes: Sequence[Change]) -> tuple[SimulatedTimes, ...]:
    if isinstance(graph, KernelAnswers):
        return graph.times(changes)
    what = changes[0].text if changes else "this recording"
    raise UsageError(
        f"{what}: is simulated on the graph of spans, which has no single kernels, so there is no "
        "trace to save."
    )


def _estimates(changes: Sequence[Change]) -> list[str]:
    return [
        f"{one.text}: is an estimate; compute is taken to be a third of the transfers longer "
        "beside these, and what the hooks of overlap cost the CPU is in the error alone."
        for one in changes
        if isinstance(one, Overlapped)
    ]


def _of_flags(flags: dict[str, Any]) -> list[Change]:
    found = []
    for name, value in flags.items():
        flag = f"--{name.replace('_', '-')}"
        values = value if isinstance(value, (list, tuple)) else [value]
        found += [read(flag, str(one)) for one in values]
    return found


def _answerable(changes: Sequence[Change]) -> None:
    of_spans = [one for one in changes if one.of_spans]
    others = [one for one in changes if not one.of_spans]
    if of_spans and others:
        raise UsageError(
            f"{others[0].text} and {of_spans[0].text}: the first needs single kernels and the "
            "second whole pipelines, which are simulated apart; ask for one of them at a time."
        )
    longer = [one for one in changes if getattr(one, "factor", 0) > 1]
    if math.prod(getattr(one, "factor", 1) for one in longer) > MOST_FACTOR:
        raise UsageError(
            f"{' '.join(one.text for one in longer)}: the factors must be {MOST_FACTOR:,.0f} at "
            "most, multiplied with each other."
        )


def _usual(analysis: Analysis, calibration: Calibration | None, recorded_ns: int) -> float:
    undisturbed = analysis.summary.undisturbed_iteration_ns
    return undisturbed if calibration and undisturbed else recorded_ns


def _speed(mfu: Mfu, iteration_ns: float, more: float) -> Speed:
    """Of an iteration of another length, with `more` times the tokens and FLOPs."""
    if not mfu.iteration_ns or not iteration_ns:
        return Speed(None, None)
    faster = more * mfu.iteration_ns / iteration_ns
    return Speed(
        None if mfu.tokens_per_s is None else mfu.tokens_per_s * faster,
        None if mfu.value is None else mfu.value * faster,
    )
