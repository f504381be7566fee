# SPDX-License-Identifier: Apache-2.0
"""`torch-trace analyze --partials`: what is done, and what is said of it."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from megatron.torch_trace import wording
from megatron.torch_trace.commands import terminal
from megatron.torch_trace.errors import UsageError

if TYPE_CHECKING:
    from megatron.torch_trace.analysis.run.kept_analyses import Kept
    from megatron.torch_trace.analysis.run.shares import Shard

_MOST_REASONS = 5


def keep(
    paths: Sequence[str],
    *,
    shard: str | None,
    ranks: Sequence[int],
    jobs: int | None,
    strict: bool,
    as_json: bool,
    on_start: Callable[[list[Path]], None],
    on_done: Callable[[Path], None],
) -> str | None:
    """Keep the analyses of ranks.

    Args:
        shard: as the user gave it; without one a task of a SLURM step does its share.
        the others: see `analysis.keeping.keep`; `as_json` only to be refused.

    Returns:
        What to print instead of an analysis, which a share of the traces cannot give, nor several
        windows together; None if the analysis can follow.

    Raises:
        UsageError: the request contradicts itself.
    """
    from megatron.torch_trace.analysis.run.kept_analyses import keep as keep_all
    from megatron.torch_trace.analysis.run.shares import Shard

    share = Shard.parse(shard) if shard else Shard.of_step(os.environ)
    if share and as_json:
        raise UsageError(
            f"--json: share {share} prints no analysis; leave --json out, and ask for it when all "
            "shares are done."
        )
    if share and not shard and jobs is None:
        jobs = cores_of_task(os.environ)
    began = time.monotonic()
    kept = keep_all(
        paths,
        shard=share,
        ranks=ranks or None,
        jobs=jobs,
        strict=strict,
        on_start=on_start,
        on_done=on_done,
    )
    for one in kept.skipped[:_MOST_REASONS]:
        terminal.say(f"torch-trace: {one.file}: {one.reason}")
    if len(kept.skipped) > _MOST_REASONS:
        terminal.say(
            f"torch-trace: {len(kept.skipped) - _MOST_REASONS:,} more traces cannot be analysed."
        )
    done = _done(kept, share, time.monotonic() - began)
    if share:
        return f"{done}\nWhen all {share.count} shares are done, run: {_next(kept, paths)}"
    if len(kept.windows) > 1:
        return f"{done}\nFor one of the {len(kept.windows)} windows, run: {_next(kept, paths)}"
    terminal.say(f"torch-trace: {done}")
    return None


def cores_of_task(environment: Mapping[str, str]) -> int:
    """What SLURM gives a task, by default one core: its neighbours on the node do the same."""
    given = environment.get("SLURM_CPUS_PER_TASK", "1")
    return max(1, int(given)) if given.isdecimal() else 1


def _done(kept: Kept, share: Shard | None, seconds: float) -> str:
    mine = len(kept.written) + kept.fresh + len(kept.skipped)
    of = wording.counted(len(kept.traces), "trace")
    whose = f"Share {share} has {mine:,} of {of}: " if share else ""
    parts = []
    if kept.written:
        traces = wording.counted(len(kept.written), "trace")
        parts.append(f"analysed {traces} in {wording.seconds(seconds)}")
    if kept.damaged:
        are = "is" if len(kept.damaged) == 1 else "are"
        parts.append(f"{len(kept.damaged):,} of them {are} damaged")
    if kept.fresh:
        were = "was" if kept.fresh == 1 else "were"
        parts.append(f"{wording.counted(kept.fresh, 'trace')} {were} analysed before")
    if kept.skipped:
        parts.append(f"{wording.counted(len(kept.skipped), 'trace')} cannot be analysed")
    said = ", ".join(parts) or "nothing to do"
    return f"{whose}{said}." if whose else f"{said[0].upper()}{said[1:]}."


def _next(kept: Kept, paths: Sequence[str]) -> str:
    named = [str(kept.windows[0])] if len(kept.windows) > 1 else list(paths)
    return shlex.join(["torch-trace", "analyze", *named])
