# SPDX-License-Identifier: Apache-2.0
"""From paths to the whole answer: every rank on its own, then all of them together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.analysis.run.recorded import recorded
from megatron.torch_trace.analysis.run.together import together
from megatron.torch_trace.system.cores import available_cores

if TYPE_CHECKING:
    from megatron.torch_trace.analysis.replay.early_replay import EarlyReplay


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
    keeps, early = _for_gains(gains, step, jobs)
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
        keeps=keeps,
        on_all_read=early.begin if early else None,
    )
    analysis = together(known, model_flops)
    if step is not None or not (gains or known.timelines):
        return analysis
    from megatron.torch_trace.analysis.run.gains import with_gains

    return with_gains(analysis, known, early)


def _for_gains(
    gains: bool | None, step: int | None, jobs: int | None
) -> tuple[Callable[[list[Path]], bool] | None, EarlyReplay | None]:
    """Which traces to keep for a graph, and the graph, which another core makes if there is one."""
    if gains is False or step is not None:
        # A graph is of the whole window: of one step alone there are none.
        return None, None
    # Imported here, as above: what replays a graph takes a while to import.
    from megatron.torch_trace.analysis.replay.early_replay import EarlyReplay
    from megatron.torch_trace.analysis.run.gains import are_cheap
    from megatron.torch_trace.analysis.run.graphs import are_few

    has_another = (jobs or available_cores()) > 1
    return are_few if gains else are_cheap, EarlyReplay() if has_another else None
