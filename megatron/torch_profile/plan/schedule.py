# SPDX-License-Identifier: Apache-2.0
"""Which iterations are recorded: flags -> windows of global iterations.

Two ways to say it. Cycles count from the first iteration of this process, as torch.profiler counts
steps; with `skip-first 1, wait 0, warmup 1, active 1` and a fresh start that is

    iteration      1      2        3       4 ...
                  skip  warmup  recorded  nothing

and after a resume from iteration 1000, iteration 1003 is recorded. `--torch-profile-iterations` is
absolute: 100-102 is always the 100th to 102nd iteration of the training.

Definition of the cycle: torch.profiler.schedule, which the tests compare with, step by step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice, pairwise

from megatron.torch_profile.config import TorchProfileConfig, flag_of
from megatron.torch_profile.plan.training_loop import NO_LAST
from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.wording import counted, iterations

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_CYCLE_FIELDS = ("wait", "active", "repeat", "skip_first", "skip_first_wait", "frequency")


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive iterations that become one trace.

    Args:
        first: first recorded global iteration, from 1.
        last: last recorded global iteration, included.
        warmup: iterations before `first` in which the profiler already runs.
    """

    first: int
    last: int
    warmup: int

    def __str__(self) -> str:
        return f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"


@dataclass(frozen=True, slots=True)
class Span:
    """The iterations that this process will run: `first` to `last`, global, both included.

    Where nobody says how many there are, `last` is `NO_LAST`.
    """

    first: int
    last: int

    def __str__(self) -> str:
        if self.last == NO_LAST:
            return f"iterations from {self.first} on"
        return f"iterations {self.first} to {self.last}"


class Schedule:
    """Windows in ascending order, never overlapping; made anew on every iteration over it."""

    def __init__(self, config: TorchProfileConfig, span: Span) -> None:
        self._config = config
        self.span = span

    def __iter__(self) -> Iterator[Window]:
        if self._config.iterations:
            return self._absolute()
        return self._cycles()

    def _cycles(self) -> Iterator[Window]:
        config = self._config
        wait = wait_of(config)
        length = wait + config.warmup + config.active
        first = self.span.first + config.skip_first + config.warmup
        first += 0 if config.skip_first_wait else wait
        for cycle in count():
            window = Window(
                first + cycle * length, first + cycle * length + config.active - 1, config.warmup
            )
            if (config.repeat and cycle == config.repeat) or window.last > self.span.last:
                return
            yield window

    def _absolute(self) -> Iterator[Window]:
        # Warm-up shrinks where the process or the window before leaves less room for it.
        free = self.span.first
        for first, last in parse_iterations(self._config.iterations or []):
            if first >= self.span.first and last <= self.span.last:
                yield Window(first, last, min(self._config.warmup, first - free))
                free = last + 1


def wait_of(config: TorchProfileConfig) -> int:
    """Iterations of waiting in a cycle, given directly or by the cycle's length."""
    if config.frequency is None:
        return config.wait
    return config.frequency - config.warmup - config.active


def parse_iterations(words: list[str]) -> list[tuple[int, int]]:
    """`["100-102", "7"]` -> `[(7, 7), (100, 102)]`, ascending.

    Raises:
        UsageError: not a range, empty, before iteration 1, or overlapping another.
    """
    flag = flag_of("iterations")
    ranges: list[tuple[int, int]] = []
    for word in (part for words_ in words for part in words_.split(",")):
        match = _RANGE.fullmatch(word)
        if not match:
            raise UsageError(f"{flag} {word}: write a range such as 100-102, or one iteration.")
        first, last = int(match[1]), int(match[2] or match[1])
        if first < 1:
            raise UsageError(f"{flag} {word}: iterations are numbered from 1.")
        if last < first:
            raise UsageError(f"{flag} {word}: the range is empty; write {last}-{first}.")
        ranges.append((first, last))
    ranges.sort()
    for (a, b), (c, d) in pairwise(ranges):
        if c <= b:
            raise UsageError(f"{flag}: {a}-{b} and {c}-{d} overlap; write them as one range.")
    return ranges


def check(config: TorchProfileConfig) -> None:
    """Refuse numbers that make no schedule, whatever the run.

    Raises:
        UsageError: names the flag, the value and what would be right.
    """
    minimum = {"wait": 0, "warmup": 0, "active": 1, "repeat": 0, "skip_first": 0}
    for name, least in minimum.items():
        value = getattr(config, name)
        if value < least:
            raise UsageError(f"{flag_of(name)} {value}: must be {least} or more.")
    if config.frequency is not None:
        shortest = config.warmup + config.active
        if config.frequency < shortest:
            raise UsageError(
                f"{flag_of('frequency')} {config.frequency}: a cycle holds "
                f"{counted(config.warmup, 'warm-up iteration')} and "
                f"{counted(config.active, 'recorded iteration')}, so it must be {shortest} or more."
            )
        if config.wait:
            raise UsageError(
                f"{flag_of('frequency')} {config.frequency} and {flag_of('wait')} {config.wait}: "
                "the wait follows from the frequency; give only one of the two."
            )
    if config.iterations is not None:
        defaults = TorchProfileConfig()
        cycle = [n for n in _CYCLE_FIELDS if getattr(config, n) != getattr(defaults, n)]
        if cycle:
            raise UsageError(
                f"{flag_of('iterations')} and {flag_of(cycle[0])}: one says which iterations to "
                "record, the other counts cycles; give only one of the two."
            )
        parse_iterations(config.iterations)


def make(config: TorchProfileConfig, span: Span, *, why_last: str) -> Schedule:
    """The schedule of a process that starts afresh, refused if any window cannot happen.

    Args:
        config: `check` has accepted it.
        span: the iterations this process will run.
        why_last: what ends them, for the message (`--train-iters 100`).

    Raises:
        UsageError: a window lies outside `span`; the sentence says which iterations would fit.
    """
    schedule = Schedule(config, span)
    if config.iterations:
        _check_absolute(parse_iterations(config.iterations), span, why_last)
        return schedule
    wait = wait_of(config)
    head = config.skip_first + (0 if config.skip_first_wait else wait) + config.warmup
    wanted = config.repeat or 1
    length = wait + config.warmup + config.active
    end = span.first + head + (wanted - 1) * length + config.active - 1
    if end > span.last:
        fits: int | None = sum(1 for _ in islice(schedule, wanted))
        flag, value = flag_of("repeat"), config.repeat
        if not fits:
            end = span.first + head + config.active - 1
            flag, value, fits = _too_long(config, end - span.last)
        window = Window(end - config.active + 1, end, config.warmup)
        needs = head + config.active
        advice = (
            f"{flag} {fits} fits"
            if fits is not None
            else f"lower {flag_of('skip_first')}, {flag_of('wait')}, {flag_of('warmup')} or "
            f"{flag_of('active')}, which need {needs} iterations, and there are "
            f"{span.last - span.first + 1}"
        )
        raise UsageError(
            f"{flag} {value}: the window of {iterations(window)} cannot happen, because this "
            f"process runs {span} ({why_last}); {advice}."
        )
    return schedule


def _too_long(config: TorchProfileConfig, beyond: int) -> tuple[str, int, int | None]:
    """The flag that asks for most iterations, its value, and the value that would fit.

    Args:
        beyond: how many iterations the first window ends too late.

    Returns:
        None as the last one where no value of that flag alone would do.
    """
    asked = {"skip_first": config.skip_first, "warmup": config.warmup, "active": config.active}
    if not config.skip_first_wait:
        asked["wait"] = wait_of(config)
    field = max(asked, key=asked.__getitem__)
    fits = asked[field] - beyond
    if field == "wait" and config.frequency is not None:
        return (
            flag_of("frequency"),
            config.frequency,
            config.frequency - beyond if fits >= 0 else None,
        )
    least = 1 if field == "active" else 0
    return flag_of(field), asked[field], fits if fits >= least else None


def _check_absolute(ranges: list[tuple[int, int]], span: Span, why_last: str) -> None:
    flag = flag_of("iterations")
    for first, last in ranges:
        if last > span.last:
            shown = Window(first, last, 0)
            raise UsageError(
                f"{flag} {shown}: this process runs {span} ({why_last}); choose among these."
            )
