# SPDX-License-Identifier: Apache-2.0
"""The answer of `torch-trace whatif` on a terminal."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from megatron.torch_trace.analysis.findings import LEAST_GAIN
from megatron.torch_trace.analysis.replay.answers import PathPiece
from megatron.torch_trace.analysis.run.candidates import MOST_ERROR, Candidate
from megatron.torch_trace.analysis.run.whatif import WhatIf
from megatron.torch_trace.report.table import paragraph, table
from megatron.torch_trace.report.text import LEAST_WIDTH, MOST_WIDTH
from megatron.torch_trace.wording import count, counted, duration, number, percent, ranks

_MOST_PIECES = 12
_LEAST_SHARE = 0.005
_MOST_RANKS = 16
_MOST_BESIDE = 3
_SOME_NS = 1_000
"""Less slack is none."""
_MORE_TOKENS = "--micro-batches"
"""The change after which an iteration has another number of tokens."""
_KINDS = {"cpu": "CPU", "gpu": "GPU", "communication": "communication"}


def render(answer: WhatIf, *, width: int = MOST_WIDTH) -> str:
    """The answer as plain text: the numbers, what would be gained, the path, the slack."""
    width = max(LEAST_WIDTH, min(width, MOST_WIDTH))
    parts = [
        [line for sentence in _first(answer) for line in paragraph(sentence, width, "", "  ")],
        _candidates(answer, width),
        _path("CRITICAL PATH", answer.critical_path, width),
        _path(_other_head(answer), answer.other_path, width),
        _slack(answer, width),
        [line for note in answer.notes for line in paragraph(note, width, "", "  ")],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _first(answer: WhatIf) -> list[str]:
    missed = abs(answer.replayed_ns - answer.recorded_ns)
    share = missed / max(1, answer.recorded_ns)
    replay = (
        f"{counted(answer.ranks, 'rank')}; recorded iteration {duration(answer.recorded_ns)}; the "
        f"graph of {answer.graph} gives {duration(answer.replayed_ns)}, {percent(share)} "
        f"{'more' if answer.replayed_ns > answer.recorded_ns else 'less'}"
    )
    if not missed:
        replay = replay.rpartition(", ")[0]
    if answer.inferred_edges:
        replay += f"; {count(answer.inferred_edges)} of its dependencies are inferred"
    sentences = [f"{replay}."]
    if share > MOST_ERROR:
        sentences.append(
            f"The graph misses the recorded iteration by more than {percent(MOST_ERROR)}, so it "
            "predicts nothing."
        )
    if answer.changes:
        sentences += _predicted(answer)
    elif answer.undisturbed_ns is not None:
        sentences.append(f"Undisturbed iteration {duration(answer.undisturbed_ns)}.")
    return sentences


def _predicted(answer: WhatIf) -> list[str]:
    one = answer.candidates[0]
    sentences = [f"With `{' '.join(map(quoted, answer.changes))}`: {_gained(one)}."]
    if answer.undisturbed_ns is not None:
        sentences.append(
            f"Without the profiler that iteration would take {duration(answer.undisturbed_ns)}."
        )
    before, after = answer.before, answer.after
    speeds = []
    if before.tokens_per_s is not None and after.tokens_per_s is not None:
        speeds.append(
            f"{number(after.tokens_per_s)} tokens/s instead of {number(before.tokens_per_s)}"
        )
    if before.mfu is not None and after.mfu is not None:
        speeds.append(f"MFU {percent(after.mfu)} instead of {percent(before.mfu)}")
    if speeds:
        sentences.append(f"Speed: {', '.join(speeds)}.")
    return sentences


def _gained(one: Candidate) -> str:
    takes = f"the iteration would take {duration(one.iteration_ns)}"
    error = duration(one.error_ns)
    if not one.is_distinguishable:
        return f"{takes}, not distinguishable from before (error {error})"
    what = "gain" if one.gain_ns > 0 else "loss"
    many = "; for as many tokens as recorded this is" if _MORE_TOKENS in one.change else ","
    return f"{takes}{many} a {what} of {duration(abs(one.gain_ns))} (error {error})"


def _candidates(answer: WhatIf, width: int) -> list[str]:
    if answer.changes:
        return []
    if not answer.candidates:
        return ["GAINS", "  None: no finding has a change that these traces can answer."]
    is_known = any(one.undisturbed_gain_ns is not None for one in answer.candidates)
    sure = [one for one in answer.candidates if one.is_distinguishable]
    least = LEAST_GAIN * answer.recorded_ns
    rows = [
        (
            quoted(one.change),
            one.finding or "",
            duration(one.iteration_ns),
            duration(one.gain_ns),
            duration(one.error_ns),
            *([_undisturbed(one)] if is_known else []),
        )
        for one in sure
        if abs(one.gain_ns) >= least
    ]
    also = ("undisturbed gain",) if is_known else ()
    heads = ("<~change", "<finding", "iteration", "gain", "error", *also)
    lines = ["GAINS AN ITERATION", *(table(heads, rows, width) if rows else [])]
    if any(row[0].startswith(_MORE_TOKENS) for row in rows):
        said = "an iteration has more tokens; the gain is for as many as recorded."
        lines += paragraph(f"With {_MORE_TOKENS} {said}", width, "  ", "    ")
    little = [one for one in sure if abs(one.gain_ns) < least]
    lines += _named(f"Less than {percent(LEAST_GAIN)} of the iteration", little, width)
    unsure = [one for one in answer.candidates if not one.is_distinguishable]
    return lines + _named("Not distinguishable from no gain", unsure, width)


def _named(said: str, changes: Sequence[Candidate], width: int) -> list[str]:
    """Changes in a sentence, without numbers: these are in `--json`."""
    named = "; ".join(quoted(one.change) for one in changes)
    return paragraph(f"{said}: {named}.", width, "  ", "    ") if named else []


def _undisturbed(one: Candidate) -> str:
    if one.undisturbed_gain_ns is None:
        return "unknown"
    error = duration(one.undisturbed_error_ns or 0)
    return f"{duration(one.undisturbed_gain_ns)} (error {error})"


@dataclass(slots=True)
class _Stretch:
    """Pieces of the path one after the other on one rank, of one kind."""

    rank: int
    kind: str
    longest: PathPiece
    time_ns: int
    pieces: int


def _other_head(answer: WhatIf) -> str:
    shorter = answer.other_path_shorter_ns
    if not shorter:
        return "ANOTHER PATH, as long"
    return f"ANOTHER PATH, {duration(shorter)} shorter, which is within the error"


def _path(head: str, path: Sequence[PathPiece], width: int) -> list[str]:
    stretches = _stretches(path)
    if not stretches:
        return []
    total = sum(one.time_ns for one in stretches)
    long = [one for one in stretches if one.time_ns >= _LEAST_SHARE * total]
    longest = sorted(long, key=lambda one: -one.time_ns)[:_MOST_PIECES]
    shown = [one for one in stretches if any(one is other for other in longest)]
    rows = [
        (
            f"rank {one.rank}",
            _KINDS.get(one.kind, one.kind),
            duration(one.time_ns),
            percent(one.time_ns / total) if total else "",
            one.longest.name + (f" and {one.pieces - 1:,} more" if one.pieces > 1 else ""),
        )
        for one in shown
    ]
    lines = [head, *table(("<rank", "<on", "time", "share", "<~what"), rows, width)]
    more = len(stretches) - len(shown)
    if more:
        verb = "lies" if more == 1 else "lie"
        others = counted(more, "shorter stretch", "shorter stretches")
        lines.append(f"  {others} {verb} between them: --json has all.")
    return lines


def _stretches(path: Iterable[PathPiece]) -> list[_Stretch]:
    found: list[_Stretch] = []
    for piece in path:
        if found and (found[-1].rank, found[-1].kind) == (piece.rank, piece.kind):
            last = found[-1]
            last.time_ns += piece.time_ns
            last.pieces += 1
            if piece.time_ns > last.longest.time_ns:
                last.longest = piece
        else:
            found.append(_Stretch(piece.rank, piece.kind, piece, piece.time_ns, 1))
    return found


def _slack(answer: WhatIf, width: int) -> list[str]:
    lines = []
    if len(answer.slack.ranks) > 1:
        by_slack: dict[str, list[int]] = {}
        for rank in sorted(answer.slack.ranks, key=lambda one: (one.slack_ns, one.rank)):
            by_slack.setdefault(_slack_words(rank.slack_ns), []).append(rank.rank)
        each = [
            f"{'rank' if len(which) == 1 else 'ranks'} {ranks(tuple(which))}: {slack}"
            for slack, which in by_slack.items()
        ]
        lines += _least(
            "Half of the work of a rank has at least this slack", each, _MOST_RANKS, width
        )
    spans = [
        (one.slack_ns, f"rank {one.rank} {one.name}: {duration(one.slack_ns)}")
        for one in answer.slack.spans
    ]
    calls = [
        (
            one.slack_ns,
            f"{one.dimension} {one.collective} of ranks {ranks(one.ranks)}: "
            f"{duration(one.slack_ns)}",
        )
        for one in answer.slack.collectives
    ]
    for what, found in (("Spans", spans), ("Collectives", calls)):
        # What has none is on the critical path, which is shown.
        beside = dict.fromkeys(text for ns, text in sorted(found) if ns >= _SOME_NS)
        lines += _least(f"{what} with the least slack", list(beside), _MOST_BESIDE, width)
    if not lines:
        return []
    said = "SLACK: by how much work could be later without the recorded iteration ending later"
    return [*paragraph(said, width, "", "  "), *lines]


def _slack_words(ns: int) -> str:
    return duration(ns) if ns else "none"


def _least(what: str, each: Sequence[str], most: int, width: int) -> list[str]:
    if not each:
        return []
    more = len(each) - most
    said = f"{what}: {'; '.join(each[:most])}" + (
        f"; and {more:,} more in --json." if more > 0 else "."
    )
    return paragraph(said, width, "  ", "    ")


def quoted(change: str) -> str:
    """Changes as a shell takes them: `--move-layers '3>2'`."""
    each = (one.partition(" ") for one in re.split(r" (?=--[a-z])", change))
    return " ".join(f"{flag} {shlex.quote(value)}" for flag, _, value in each)
