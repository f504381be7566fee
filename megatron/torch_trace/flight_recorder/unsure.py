# SPDX-License-Identifier: Apache-2.0
"""What is said where records do not tell whether ranks with nothing pending have called what others
wait in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from megatron.torch_trace.flight_recorder.call_names import call_words
from megatron.torch_trace.flight_recorder.joined.waiting import Joined
from megatron.torch_trace.flight_recorder.record import Call
from megatron.torch_trace.wording import ranks as rank_list

_MOST_CALLS = 3
"""In which ranks may wait, that are said."""


def unsure_sentences(joined: Joined) -> str:
    """Both ways in which it can be; empty where no rank is unsure."""
    return " ".join(_sentence(*one, joined) for one in [*_by_call(joined.unsure())][:_MOST_CALLS])


def unsure_advice(joined: Joined) -> str:
    """Which setting would tell, and where to look now; empty where no rank is unsure."""
    found = joined.unsure()
    if not found:
        return ""
    waits = tuple(sorted({other for mine in found.values() for other in mine}))
    if any(one.pending_alone for one in joined.records.values()):
        tells = (
            "The records hold pending calls alone. Records with complete calls would tell: put "
            "`export TORCH_INCLUDE_ONLY_ACTIVE=0` into the launch script (Megatron sets 1 with "
            "--flight-recorder-dump-path)."
        )
    else:
        tells = (
            "The records hold too few complete calls: put `export TORCH_FR_BUFFER_SIZE=20000` "
            "into the launch script."
        )
    return (
        f"{tells} For now, look at the Python stacks of {_ranks(tuple(sorted(found)))} (`py-spy "
        f"dump --pid PID`), and for Xid errors of the GPUs of {_ranks(waits)} (`dmesg`)."
    )


def _by_call(
    unsure: Mapping[int, Mapping[int, Call]],
) -> Iterator[tuple[Call, tuple[int, ...], tuple[int, ...]]]:
    """Calls with the ranks that may not have called them, and those that wait; the oldest first."""
    ranks: dict[tuple[str, int, str], list[int]] = {}
    firsts: dict[tuple[str, int, str], Call] = {}
    waits: dict[tuple[str, int, str], set[int]] = {}
    for rank, mine in unsure.items():
        first = min(mine.values(), key=lambda one: one.created)
        same = first.group, first.sequence, first.name
        firsts.setdefault(same, first)
        ranks.setdefault(same, []).append(rank)
        others = [o for o, one in mine.items() if (one.group, one.sequence, one.name) == same]
        waits.setdefault(same, set()).update(others)
    for same, first in sorted(firsts.items(), key=lambda one: one[1].created):
        yield first, tuple(sorted(ranks[same])), tuple(sorted(waits[same]))


def _sentence(call: Call, ranks: tuple[int, ...], waits: tuple[int, ...], joined: Joined) -> str:
    what = call_words(call, joined.groups)
    part = "their parts" if len(ranks) > 1 else "its part"
    of = f"{part} of {what}" if call.is_transfer else what
    many, wait = len(ranks) > 1, len(waits) > 1
    likelier = len(waits) > max(2, len(ranks))
    return (
        f"{_ranks(ranks).capitalize()} {'have' if many else 'has'} nothing pending, and "
        f"{'their records do' if many else 'its record does'} not tell whether "
        f"{'they' if many else 'it'} called {of}. Either {_ranks(waits)} "
        f"{'wait' if wait else 'waits'} for {'them' if many else 'it'}, whose "
        f"{'CPUs are' if many else 'CPU is'} elsewhere; or {'they have' if many else 'it has'} "
        f"completed it, and the {'GPUs' if wait else 'GPU'} of {_ranks(waits)} "
        f"{'are' if wait else 'is'} stuck."
        f"{' The first is likelier: GPUs seldom stick together.' if likelier else ''}"
    )


def _ranks(numbers: tuple[int, ...]) -> str:
    return f"{'ranks' if len(numbers) > 1 else 'rank'} {rank_list(numbers)}"
