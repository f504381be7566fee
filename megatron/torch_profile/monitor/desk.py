# SPDX-License-Identifier: Apache-2.0
"""Where requests arrive, on rank 0 alone: checked, given iterations, answered.

A request is answered before any rank is told, so one that has been executed has an answer, and what
has an answer is never executed again.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megatron.torch_profile.log import Slug, say, warn
from megatron.torch_profile.monitor.agreement import LEAD_SECONDS, Agreed, Pace, placed
from megatron.torch_profile.monitor.channel import Channel
from megatron.torch_profile.monitor.requested_steps import LATE, RECORDED
from megatron.torch_profile.plan import ranks
from megatron.torch_profile.plan.capture_plan import CapturePlan
from megatron.torch_trace import wording
from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.files.atomic import atomic_path
from megatron.torch_trace.format import requests
from megatron.torch_trace.format.requests import Request

SIGNALS = "signals"
"""The counter of signals that ranks have received."""
_MOST_FILES = 10_000


@dataclass(slots=True)
class _UnderWay:
    number: int
    agreed: Agreed
    told: dict[int, str] = field(default_factory=dict)
    heard: int = 0


class Desk:
    """Takes requests.

    Args:
        plan: of this run.
        channel: to the other ranks.
        now: a clock.
    """

    def __init__(
        self, plan: CapturePlan, channel: Channel, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._plan = plan
        self._channel = channel
        self._now = now
        self._folder = plan.run_folder / requests.REQUESTS
        self._folder.mkdir(exist_ok=True)
        self._seen: set[str] = set()
        self._waiting: list[tuple[str, Request]] = []
        self._under_way: list[_UnderWay] = []
        self._published = 0
        self._signals = 0
        self._by_signal: str | None = None
        self._asked: deque[tuple[str, Request]] = deque()
        self._pace = Pace()

    @property
    def busy(self) -> bool:
        """Whether an answer is still to be given."""
        return bool(self._waiting or self._under_way or self._asked)

    def look(self, progress: int, *, closed: bool = False) -> None:
        """Once every few seconds: what is new, what is over.

        Args:
            progress: the iteration that rank 0 is in.
            closed: training has ended.
        """
        self._pace.see(progress, self._now())
        if "file" in (self._plan.config.trigger or ()):
            self._read_folder()
        self._count_signals()
        while self._asked:
            self._file(*self._asked.popleft())
        for name, request in self._waiting if self._pace.known or closed else ():
            if closed:
                self._answer(name, "refused", requests.TRAINING_HAS_ENDED)
            else:
                self._agree(name, request, progress)
        if self._pace.known or closed:
            self._waiting = []
        for one in list(self._under_way):
            self._hear(one)
            if len(one.told) == len(one.agreed.ranks):
                self._conclude(one)

    def end(self) -> None:
        """The process ends: what is known by now is the answer."""
        for one in list(self._under_way):
            self._hear(one)
            self._conclude(one)

    def _read_folder(self) -> None:
        names = []
        with os.scandir(self._folder) as entries:
            for entry, _ in zip(entries, range(_MOST_FILES), strict=False):
                names.append(entry.name)
        there = {*names}
        for file in sorted(name for name in names if requests.is_request(name)):
            name = file.removesuffix(requests.SUFFIX)
            if name in self._seen:
                continue
            self._seen.add(name)
            if name + requests.ANSWER_SUFFIX not in there:
                self._receive(name, self._folder / file)

    def _receive(self, name: str, path: Path) -> None:
        try:
            request = Request.parse(_content(path))
            self._ranks(request)
        except UsageError as error:
            self._answer(name, "refused", str(error))
        except OSError as error:
            self._answer(name, "refused", f"the request cannot be read ({error.strerror}).")
        except ValueError as error:  # such as a number of 5,000 digits
            self._answer(name, "refused", f"{error}.")
        else:
            self._waiting.append((name, request))

    def _count_signals(self) -> None:
        signals = self._channel.add(SIGNALS, 0)
        if signals == self._signals:
            return
        self._signals = signals
        names = {name for name, _ in self._waiting} | {u.agreed.request for u in self._under_way}
        if self._by_signal in names:
            say(Slug.REQUEST, "SIGUSR2 came again: request %s stands for it", self._by_signal)
            return
        name = self._by_signal = f"signal-{requests.new_name()}"
        self._file(name, Request())

    def ask(self, name: str, request: Request) -> None:
        """Take a request from within training, at the next look; any thread may ask."""
        self._asked.append((name, request))

    def _file(self, name: str, request: Request) -> None:
        """A request that came by no file gets one, so that everybody sees it."""
        self._seen.add(name)
        with atomic_path(self._folder / (name + requests.SUFFIX), replace=False) as unfinished:
            unfinished.write_text(request.as_text())
        self._waiting.append((name, request))

    def _ranks(self, request: Request) -> tuple[int, ...]:
        if request.ranks is None:
            return self._plan.ranks
        topology = self._plan.topology
        try:
            return ranks.resolve(request.ranks, topology.layout, topology.members)
        except UsageError as error:
            raise UsageError(str(error).replace("--torch-profile-", "--")) from None

    def _agree(self, name: str, request: Request, progress: int) -> None:
        plan = self._plan
        begin = progress + 1 + self._pace.lead()
        others = sorted((one.agreed.window for one in self._under_way), key=lambda w: w.first)
        warmup = plan.config.warmup
        window, behind = placed(begin, request.iterations, warmup, plan.schedule, others)
        if window.last > plan.schedule.span.last:
            self._answer(
                name,
                "refused",
                f"a window begins {LEAD_SECONDS:.0f} s after the request or later, so this one "
                f"would be {wording.iterations(window)}, and training runs {plan.schedule.span}.",
            )
            return
        chosen = self._ranks(request)
        agreed = Agreed(
            name,
            window.first,
            window.last,
            window.warmup,
            chosen,
            request.spans,
            request.with_stack,
        )
        said = f"records {wording.iterations(window)} on {ranks_in_words(chosen)}"
        if behind:
            said += f", after the window of {wording.iterations(behind)}"
        if not self._answer(name, "accepted", f"{said}.", agreed):
            return
        self._channel.set(f"agreed/{self._published}", agreed.as_text())
        self._under_way.append(_UnderWay(self._published, agreed))
        self._published += 1

    def _hear(self, one: _UnderWay) -> None:
        heard = self._channel.add(f"told/{one.number}", 0)
        if heard == one.heard:
            return
        one.heard = heard
        for rank in one.agreed.ranks:
            key = f"told/{one.number}/{rank}"
            if rank not in one.told and self._channel.check([key]):
                one.told[rank] = self._channel.get(key).decode()

    def _conclude(self, one: _UnderWay) -> None:
        self._under_way.remove(one)
        agreed, told = one.agreed, one.told
        recorded = tuple(rank for rank in agreed.ranks if told.get(rank) == RECORDED)
        late = tuple(rank for rank in agreed.ranks if told.get(rank) == LATE)
        silent = tuple(rank for rank in agreed.ranks if rank not in told)
        without = tuple(r for r in agreed.ranks if r not in recorded + late + silent)
        window = wording.iterations(agreed.window)
        facts = [f"recorded {window} on {ranks_in_words(recorded)}"] if recorded else []
        facts += [f"{ranks_in_words(late)} learned of it too late"] if late else []
        facts += [f"no trace of {window} on {ranks_in_words(without)}"] if without else []
        facts += [f"unknown whether {ranks_in_words(silent)} recorded it"] if silent else []
        folder = self._plan.window_folder(agreed.window).name if recorded else None
        state = "done" if recorded else "failed"
        self._answer(
            agreed.request, state, "; ".join(facts) + ".", agreed, recorded=recorded, folder=folder
        )

    def _answer(
        self,
        name: str,
        state: str,
        sentence: str,
        agreed: Agreed | None = None,
        *,
        recorded: tuple[int, ...] | None = None,
        folder: str | None = None,
    ) -> bool:
        answer: dict[str, Any] = {"schema": 1, "request": name, "state": state, "says": sentence}
        if agreed is not None:
            answer |= {"first": agreed.first, "last": agreed.last, "warmup": agreed.warmup}
            answer["ranks"] = list(agreed.ranks)
        if recorded is not None:
            answer |= {"recorded_ranks": list(recorded), "folder": folder}
        shown = wording.visible(name)
        say(Slug.REQUEST, "request %s %s: %s", shown, state, wording.visible(sentence))
        try:
            with atomic_path(self._folder / (name + requests.ANSWER_SUFFIX)) as unfinished:
                unfinished.write_text(json.dumps(answer) + "\n")
        except (OSError, ValueError) as error:  # a name that is too long, a full disk
            warn(Slug.REQUEST, "the answer to request %s was not written: %s", shown, error)
            return False
        return True


def ranks_in_words(numbers: tuple[int, ...]) -> str:
    """`rank 0`, `ranks 0-7`."""
    return f"rank{'' if len(numbers) == 1 else 's'} {wording.ranks(numbers)}"


def _content(path: Path) -> bytes:
    """What a file holds, which may be anything that somebody has put there."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UsageError("the request is no file.")
        return file.read(requests.MOST_BYTES + 1)
