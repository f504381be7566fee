# SPDX-License-Identifier: Apache-2.0
"""From paths to the whole answer: every rank on its own, then all of them together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from megatron.torch_trace.analysis.results.analysis import Analysis
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
    on_kept: Callable[[int, int], None] | None = None,
) -> Analysis:
    """Where the time of an iteration went, over all ranks whose traces are given.

    Arguments and errors are those of `torch_trace.analyze`, which adds the findings of memory
    (`allocator/ranks/analysed.py`).

    Returns:
        The analysis of the traces alone.
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
        on_kept=on_kept,
        keeps=_keeps(gains, step),
    )
    analysis = together(known, model_flops)
    if step is not None or not (gains or known.timelines):
        return analysis
    from megatron.torch_trace.analysis.run.gains import with_gains

    return with_gains(analysis, known)


def _keeps(gains: bool | None, step: int | None) -> Callable[[list[Path]], bool] | None:
    """A graph is of the whole window: of one step alone there are none."""
    if gains is False or step is not None:
        return None
    # Imported here, as above: what replays a graph takes a tenth of a second to import.
    from megatron.torch_trace.analysis.run.gains import are_cheap
    from megatron.torch_trace.analysis.run.graphs import are_few

    return are_few if gains else are_cheap
