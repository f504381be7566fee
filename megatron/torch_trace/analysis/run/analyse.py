# SPDX-License-Identifier: Apache-2.0
"""From paths to the whole answer: every rank on its own, then all of them together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.analysis.run.gains import are_cheap, with_gains
from megatron.torch_trace.analysis.run.graphs import are_few
from megatron.torch_trace.analysis.run.recorded import recorded
from megatron.torch_trace.analysis.run.together import together


def analyze(
    path: Path | str | Iterable[Path | str],
    *,
    ranks: Iterable[int] | None = None,
    step: int | None = None,
    model_flops: float | None = None,
    jobs: int | None = None,
    strict: bool = False,
    use_partials: bool = True,
    gains: bool | None = False,
    on_start: Callable[[list[Path]], None] | None = None,
    on_done: Callable[[Path], None] | None = None,
) -> Analysis:
    """Where the time of an iteration went, over all ranks whose traces are given.

    Args:
        path: a trace, a folder of them, or several of either; one window of one run.
        ranks: only these; None for all.
        step: only this step, by its number in the trace.
        model_flops: FLOPs of the model in one iteration over all GPUs, where the traces do not hold
            them.
        jobs: processes; None for what cores and memory allow.
        strict: raise StrictError at the first damage instead of working on what is whole.
        use_partials: take what an earlier analysis kept of a trace instead of reading it; the
            result is the same, also where the trace itself is gone.
        gains: find out what each finding would gain; None: where that is cheap, since the traces
            are read anyway and are small.
        on_start, on_done: for progress: all files that are read, and each once it is through.

    Returns:
        The analysis: times in ns, shares of 1, sizes in bytes, bandwidths in decimal GB/s; every
        number is defined in docs/computed.md. A file that could not be analysed is in
        `skipped_files` with its reason.

    Raises:
        UsageError: a path does not exist, two traces are of the same rank, a rank or step is not
            there, or no file could be analysed.
        StrictError: see `strict`.

    Example:
        analysis = torch_trace.analyze("torch_profile/20261127-221810/iter-0000003")
        for finding in analysis.findings:
            print(finding.title, finding.advice)
        print(analysis.to_polars()["communication"])
    """
    known = recorded(
        path,
        ranks=ranks,
        step=step,
        jobs=jobs,
        strict=strict,
        use_partials=use_partials,
        on_start=on_start,
        on_done=on_done,
        keeps=_keeps(gains, step),
    )
    analysis = together(known, model_flops)
    if step is not None or not (gains or known.timelines):
        return analysis
    return with_gains(analysis, known)


def _keeps(gains: bool | None, step: int | None) -> Callable[[list[Path]], bool] | None:
    """A graph is of the whole window: of one step alone there are none."""
    if gains is False or step is not None:
        return None
    return are_few if gains else are_cheap
