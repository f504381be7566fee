# SPDX-License-Identifier: Apache-2.0
"""Ranks that the monitor has named: slow ones, and ones whose memory grows. From metrics.jsonl."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite

from megatron.torch_trace import wording
from megatron.torch_trace.format.json_text import value_of

SLOW, GROWS = "slow_rank", "memory"
_SLOW_KEY, _GROWS_KEY = "monitor/slow_rank", "monitor/growing_rank"
_WHICH = b"monitor/slow_rank", b"monitor/growing_rank"
_PART = "monitor/slow_by_ms/"


@dataclass(frozen=True, slots=True)
class NamedRank:
    """One line of the monitor.

    Args:
        kind: `SLOW` or `GROWS`.
        first, last: iterations that it is about; None where the line does not tell.
        sentence: about it.
    """

    kind: str
    first: int | None
    last: int | None
    sentence: str


def named_ranks(lines: Iterable[bytes]) -> Iterator[NamedRank]:
    """Those in some lines of metrics.jsonl, in their order; a line that is not whole is none."""
    for line in lines:
        if any(key in line for key in _WHICH):
            with suppress(ValueError, TypeError, AttributeError, KeyError, OverflowError):
                told = value_of(line)
                if all(isfinite(of) for of in told.values() if isinstance(of, float)):
                    yield _named(told)


def _named(of: Mapping[str, float]) -> NamedRank:
    if _GROWS_KEY in of:
        each = wording.size(1e6 * of["monitor/growing_mb_per_iteration"])
        words = f"the memory of rank {of[_GROWS_KEY]:.0f} on its host grows by {each} an iteration."
        first, last = (_whole(of.get(f"monitor/growing_{key}")) for key in ("since", "seen"))
        return NamedRank(GROWS, first, last, words)
    by = of.get("monitor/slow_by_ms")
    longer = "much" if by is None else wording.duration(by * 1e6)
    part = next((key.removeprefix(_PART) for key in of if key.startswith(_PART)), "")
    where = f" in {wording.part_of_iteration(part)}" if part else ""
    words = f"rank {of[_SLOW_KEY]:.0f} is slow: {longer} longer{where}."
    first, last = (_whole(of.get(f"monitor/slow_{key}")) for key in ("since", "seen"))
    return NamedRank(SLOW, first, last, words)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
