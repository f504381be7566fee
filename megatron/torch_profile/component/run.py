# SPDX-License-Identifier: Apache-2.0
"""A config from its first case to the answer: each case is built, warmed up, measured, recorded."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from statistics import median

import torch

from megatron.torch_profile.component import ready
from megatron.torch_profile.component.building import LeftOutError, built_step
from megatron.torch_profile.component.config import Config
from megatron.torch_profile.component.findings import of_result
from megatron.torch_profile.component.measure.ceilings import (
    EIGHT_BIT,
    Ceilings,
    CeilingsCache,
    device_name,
)
from megatron.torch_profile.component.measure.clocks import Clock, clock_of
from megatron.torch_profile.component.measure.finding import Finding
from megatron.torch_profile.component.measure.samples import ratio
from megatron.torch_profile.component.measure.traced_flops import traced_flops
from megatron.torch_profile.component.measure.watch import Watch
from megatron.torch_profile.component.measure.wide_products import wide_products
from megatron.torch_profile.component.measure.work import Work, with_flops, work_of
from megatron.torch_profile.component.ranks import Ranks
from megatron.torch_profile.component.recording import record
from megatron.torch_profile.component.results import Answer, Measured, Result, compared
from megatron.torch_profile.component.run_files import RunFiles
from megatron.torch_profile.component.step import ShapesError, Step
from megatron.torch_profile.component.targets import told
from megatron.torch_profile.component.variants import Case, baseline_of, cases
from megatron.torch_profile.component.waterfall import waterfall_of
from megatron.torch_trace.errors import TorchTraceError, UsageError
from megatron.torch_trace.format.file_names import WindowName


@dataclass(slots=True)
class Measurer:
    """What all cases share.

    Args:
        clock: measures the steps.
        iteration: steps that have run so far, over all cases: iterations of the run folder.
    """

    config: Config
    device: str
    clock: Clock
    ranks: Ranks
    files: RunFiles
    ceilings: CeilingsCache | None = None
    iteration: int = 0

    def result(self, case: Case) -> Result:
        """One case, from its build to its trace."""
        watch = Watch()
        try:
            with alone(case, self.device):
                before = self._in_use()
                with watch.listening():
                    step = built_step(case, self.config, self.device)
                    self._warm_up(step)
                return self._measured(case, step, watch, before)
        except LeftOutError as error:
            return Result(case, failure=str(error), left_out=True)
        except UsageError:
            raise
        except Exception as error:
            if self.ranks.size > 1:  # the others wait for this one: whoever started them must know
                raise
            said = str(error) if isinstance(error, ShapesError) else told(error)
            # What was refused has often said why.
            return Result(case, failure=said, findings=tuple(watch.findings(_nothing)))

    def with_last_ceilings(self, one: Result) -> Result:
        """All variants are held against the same ones: the highest that were found on the way."""
        if self.ceilings is None or one.ceilings is None:
            return one
        return replace(one, ceilings=self.ceilings.get(self.device, one.ceilings.dtype))

    def times_again(self, case: Case) -> tuple[int, ...]:
        """Of the slowest rank, once more and without a trace."""
        with alone(case, self.device):
            step = built_step(case, self.config, self.device)
            self._warm_up(step)
            times = self.clock.times(step, self.config.measure)
            found = self.ranks.gathered(Measured(self.ranks.rank, tuple(times)))
        return max(found, key=lambda one: one.summary.median).times

    def _warm_up(self, step: Step) -> None:
        for _ in range(max(1, self.config.warmup) + self.config.wait):
            step.prepare()
            step()
            step.check_shapes()

    def _measured(self, case: Case, step: Step, watch: Watch, before: int) -> Result:
        config = self.config
        self.iteration += max(1, config.warmup) + config.wait
        self.ranks.meet()
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        with watch.listening():
            times = self.clock.times(step, config.measure)
        peak = self._peak(before)
        queued = self.clock.queued(step, median(times))
        self.iteration += len(queued)
        mine = Measured(self.ranks.rank, tuple(times), peak, median(queued) if queued else None)
        measured_from = self.iteration + 1
        self.iteration += config.measure
        found = self.ranks.gathered(mine)
        work = work_of(step)
        window, waterfall = None, None
        if config.record:
            window = WindowName(self.iteration + 1, self.iteration + config.record)
            self.iteration += config.record
            trace = self._recorded(case, step, window, work, times, measured_from)
            if trace is not None:
                waterfall = waterfall_of(trace, config.record)
                work = with_flops(work, traced_flops(trace, config.record))
            self.files.write_summary(window, case, mine, work, self.device)
        result = Result(
            case,
            tuple(found),
            work,
            self._ceilings(case, work, mine.summary.median),
            window,
            waterfall,
            (*watch.findings(step.explained), *_of_products(case, step)),
        )
        return of_result(result, step)

    def _recorded(
        self,
        case: Case,
        step: Step,
        window: WindowName,
        work: Work | None,
        times: list[int],
        measured_from: int,
    ) -> Path | None:
        self.ranks.meet()
        if self.ranks.rank not in self.config.ranks:
            for _ in range(self.config.record + 1):  # with the ranks that record
                step.prepare()
                step()
            return None
        metadata = self.files.metadata(
            case, work.flops if work else None, self.device, causal=step.component.causal
        )
        undisturbed = [[measured_from + n, ns] for n, ns in enumerate(times)][-20:]
        return record(
            step,
            window,
            self.files.folder,
            {**metadata, "undisturbed_iterations": undisturbed},
            stacks=self.config.stacks,
        )

    def _ceilings(self, case: Case, work: Work | None, median_ns: float) -> Ceilings | None:
        if self.ceilings is None or work is None:
            return None
        dtype: str = case.autocast or case.cast or case.dtype
        if case.arguments.get("fp8"):
            dtype = EIGHT_BIT
        found = self.ceilings.get(self.device, dtype)
        if found.least_ns(work) > median_ns:
            # Others were at work when the ceilings were measured.
            found = self.ceilings.again(self.device, dtype)
        return found

    def _in_use(self) -> int:
        return torch.cuda.memory_allocated() if self.device == "cuda" else 0

    def _peak(self, before: int) -> int | None:
        """With what the component holds itself, without what was in use before it was built."""
        if self.device != "cuda":
            return None
        return int(torch.cuda.max_memory_allocated()) - before


@contextmanager
def alone(case: Case, device: str) -> Iterator[None]:
    """A case compiles for itself, and leaves nothing behind."""
    with ExitStack() as stack:
        if case.compile is not None:
            dynamo = import_module("torch._dynamo")
            dynamo.reset()
            stack.enter_context(dynamo.config.patch(disable=False))
        try:
            yield
        finally:
            gc.collect()
            if device == "cuda":
                torch.cuda.empty_cache()


def run(config: Config, *, clock: Clock | None = None) -> Answer:
    """Measure all cases of a config, and write the run folder.

    Args:
        clock: instead of the device's own.

    Raises:
        UsageError: the config asks for what cannot be.
        TorchTraceError: no case could be measured.
    """
    device = _device(config)
    if device == "cpu":  # Kineto's only complaint would be that there is no GPU
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    wanted = cases(config)
    ready.check(wanted)
    with ExitStack() as stack:
        ranks = stack.enter_context(Ranks.of_environment(device))
        _check_ranks(config, ranks)
        stack.enter_context(ready.surroundings(wanted, config, device))
        files = RunFiles.made(config, ranks)
        stack.callback(files.remove_empty)
        clock = clock or clock_of(device, flush=config.flush_l2)
        ceilings = CeilingsCache() if config.roofline else None
        measurer = Measurer(config, device, clock, ranks, files, ceilings)
        results = [measurer.result(case) for case in wanted]
        if all(one.failure for one in results):
            raise TorchTraceError(f"target {config.target}: {results[0].failure}")
        results = [measurer.with_last_ceilings(one) for one in results]
        bases = [results[wanted.index(baseline_of(case, wanted))] for case in wanted]
        first = results[0].slowest
        again = None
        if len(results) > 1 and first is not None:
            again = ratio(measurer.times_again(wanted[0]), first.times)
        answer = Answer(
            config,
            files.folder,
            device_name(device),
            clock.name,
            ranks.size,
            tuple(compared(results, bases)),
            again,
        )
        files.write_run_file(answer)
    return answer


def _of_products(case: Case, step: Step) -> list[Finding]:
    with suppress(RuntimeError, NotImplementedError, TypeError):
        return list(wide_products(step, case.autocast or case.cast or case.dtype))
    return []


def _nothing() -> None:
    return None


def _device(config: Config) -> str:
    if config.device == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            "device: cuda; torch sees no GPU here; write `device: cpu` or leave it out."
        )
    if config.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return config.device


def _check_ranks(config: Config, ranks: Ranks) -> None:
    for one in config.ranks:
        if not 0 <= one < ranks.size:
            raise UsageError(
                f"ranks: {one}; there are {ranks.size} ranks, numbered from 0."
                if ranks.size > 1
                else f"ranks: {one}; there is one rank, 0, without torchrun."
            )
