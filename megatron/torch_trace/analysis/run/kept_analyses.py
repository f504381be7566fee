# SPDX-License-Identifier: Apache-2.0
"""`analyze --partials`: analyse ranks and keep what was found beside their traces."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from megatron.torch_trace.analysis.results.analysis import SkippedFile
from megatron.torch_trace.analysis.run import kept_analysis
from megatron.torch_trace.analysis.run.iterations_beside import with_iterations_beside
from megatron.torch_trace.analysis.run.rank_pool import analyse_ranks
from megatron.torch_trace.analysis.run.rank_sources import find, is_fresh
from megatron.torch_trace.analysis.run.shares import Shard
from megatron.torch_trace.errors import TorchTraceError
from megatron.torch_trace.files.selection import of_ranks, windows_of
from megatron.torch_trace.format.file_names import kept_analysis_of
from megatron.torch_trace.wording import path_text


@dataclass(slots=True)
class Kept:
    """What was done.

    Args:
        traces: all that were found, of whichever share.
        windows: folders that these lie in, where they are folders of windows.
        written: traces whose kept analyses are new.
        fresh: how many had one already.
        skipped: traces without one, and why.
        damaged: traces that were analysed as far as they are whole.
    """

    traces: list[Path]
    windows: list[Path]
    written: list[Path] = field(default_factory=list)
    fresh: int = 0
    skipped: list[SkippedFile] = field(default_factory=list)
    damaged: list[Path] = field(default_factory=list)


def keep(
    paths: Iterable[Path | str],
    *,
    shard: Shard | None = None,
    ranks: Iterable[int] | None = None,
    jobs: int | None = None,
    strict: bool = False,
    on_start: Callable[[list[Path]], None] | None = None,
    on_done: Callable[[Path], None] | None = None,
) -> Kept:
    """Keep the analysis of every trace that has no fresh one yet, in all windows.

    Args:
        paths: traces, folders of them, or runs.
        shard: only this share of the traces.
        ranks, jobs, strict, on_start, on_done: see `analyse.analyze`.

    Raises:
        UsageError: a path does not exist, or holds neither a trace nor a kept analysis.
        StrictError: see `strict`.
        TorchTraceError: a kept analysis cannot be written.
    """
    traces = of_ranks(find(paths).traces, None if ranks is None else set(ranks))
    result = Kept(traces, windows_of(traces))
    # Divided with those that are done already: other shares may look later, and see more of them.
    mine = shard.of(traces) if shard else traces
    missing = [trace for trace in mine if not is_fresh(trace)]
    result.fresh = len(mine) - len(missing)
    if on_start:
        on_start(missing)
    identities = {}
    for trace in missing:
        try:
            identities[trace] = kept_analysis.identify(trace)
        except OSError as error:
            result.skipped.append(SkippedFile(path_text(trace), error.strerror or "cannot be read"))
    for trace, outcome in analyse_ranks(
        list(identities), jobs=jobs, strict=strict, on_done=on_done
    ):
        try:
            if isinstance(outcome, TorchTraceError):
                raise outcome
            outcome = with_iterations_beside(outcome, trace)
            kept_analysis.write(outcome, trace, identities[trace])
        except TorchTraceError as error:
            reason = str(error).removeprefix(f"{trace}: ")
            result.skipped.append(SkippedFile(path_text(trace), reason))
        except OSError as error:
            raise TorchTraceError(
                f"{kept_analysis_of(trace)}: cannot be written ({error.strerror or error})."
            ) from error
        else:
            result.written.append(trace)
            if outcome.result.damage:
                result.damaged.append(trace)
    return result
