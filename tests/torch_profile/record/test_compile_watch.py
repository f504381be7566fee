# SPDX-License-Identifier: Apache-2.0
"""Real torch.compile, real warnings: what is counted, and that everything is put back."""

from __future__ import annotations

import logging
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from logging_megatron import Follow

from megatron.torch_profile.log import Slug
from megatron.torch_profile.metrics import compile_counts
from megatron.torch_profile.metrics.compile_counts import Complaints
from megatron.torch_profile.record.compilations import COUNTS, CompileWatch


@pytest.fixture
def watch() -> Iterator[CompileWatch]:
    show = warnings.showwarning
    watch = CompileWatch()
    watch.start()
    yield watch
    watch.stop()
    assert warnings.showwarning is show
    assert not logging.getLogger("torch._dynamo.convert_frame").handlers


def counts(watch: CompileWatch) -> dict[str, float]:
    return dict(zip(COUNTS, watch.counts(), strict=True))


@pytest.fixture
def compiled() -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own imports
        torch.compiler.reset()
        with torch._dynamo.config.patch(recompile_limit=3):
            yield torch.compile(lambda x: x * 2, backend="eager", dynamic=False)
    torch.compiler.reset()


def test_recompilations_are_counted_up_to_the_limit_and_the_limit_itself(
    watch: CompileWatch, compiled: Any
) -> None:
    compiled(torch.ones(1))
    assert counts(watch) == dict.fromkeys(COUNTS, 0), "the first time is none"
    compiled(torch.ones(2))
    compiled(torch.ones(2))
    assert counts(watch)["recompiles"] == 1
    for size in range(3, 6):
        compiled(torch.ones(size))
    assert counts(watch) == {
        "recompiles": 2,
        "graph_breaks": 0,
        "recompile_limit_hits": 1,
        "fused_kernels_refused": 0,
    }
    again = CompileWatch()
    again.start()
    assert counts(again) == dict.fromkeys(COUNTS, 0), "only what happens since"
    again.stop()
    torch.compiler.reset()
    compiled(torch.ones(1))
    assert counts(watch)["recompiles"] >= 0


def test_graph_breaks_are_counted(watch: CompileWatch, compiled: Any) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    torch.compile(broken, backend="eager")(torch.ones(3))
    assert counts(watch)["graph_breaks"] == 1
    assert counts(watch)["recompiles"] == 0


def test_a_fused_norm_that_refuses_mixed_types_is_counted_and_its_warning_still_shown() -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        watch = CompileWatch()
        watch.start()
        x, weight = torch.ones(2, 4, dtype=torch.bfloat16), torch.ones(4)
        torch.nn.functional.rms_norm(x, (4,), weight)
        warnings.warn("something else", stacklevel=1)
        watch.stop()
    assert counts(watch)["fused_kernels_refused"] == 1
    said = [str(warning.message) for warning in shown]
    assert said[0].startswith("Mismatch dtype between input and weight")
    assert said[1] == "something else"


def test_a_torch_that_tells_nothing_leaves_it_unknown(
    watch: CompileWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("torch._dynamo.convert_frame", "torch._dynamo.utils"):
        monkeypatch.setitem(sys.modules, module, SimpleNamespace())  # type: ignore[arg-type]
    recompiles, breaks, *rest = watch.counts()
    assert math.isnan(recompiles)
    assert math.isnan(breaks)
    assert rest == [0, 0]


def test_the_rank_that_has_most_is_counted_and_trouble_is_said_once_after_the_warm_up() -> None:
    rows = [[1.0, 0.0, 0.0, 0.0], [3.0, 2.0, 1.0, 0.0], [math.nan, math.nan, 0.0, 1.0]]
    assert compile_counts.values(rows) == {
        "compile/recompiles": 3.0,
        "compile/graph_breaks": 2.0,
        "compile/recompile_limit_hits": 1.0,
        "compile/fused_kernels_refused": 1.0,
    }
    complaints = Complaints()
    assert complaints.of(rows, warm=False) == {
        Slug.FUSED_KERNEL_REFUSED: "a fused kernel refused its inputs on rank 2; the warning in "
        "the log of rank 2 names the types"
    }
    assert complaints.of(rows, warm=True) == {
        Slug.RECOMPILED: "torch.compile was at work on rank 1 since the last log: 3 "
        "recompilations, 2 graph breaks, 1 function at the recompile limit; "
        "TORCH_LOGS=recompiles,graph_breaks says why"
    }
    assert complaints.of(rows, warm=True) == {}
    once, on_two = [0.0, 1.0, 0.0, 0.0], [[0.0, 0.0, 0.0, 1.0]] * 2
    assert Complaints().of([once], warm=True) == {
        Slug.RECOMPILED: "torch.compile was at work on rank 0 since the last log: 1 graph break; "
        "TORCH_LOGS=recompiles,graph_breaks says why"
    }
    assert Complaints().of(on_two, warm=True) == {
        Slug.FUSED_KERNEL_REFUSED: "a fused kernel refused its inputs on 2 ranks, such as rank 0; "
        "the warning in the log of rank 0 names the types"
    }
    assert Complaints().of([[math.nan] * len(COUNTS)], warm=True) == {}


def test_each_interval_has_its_own_count(
    follow: Follow, compiled: Callable[[torch.Tensor], Any], warned: list[str]
) -> None:
    def model(iteration: int) -> float:
        compiled(torch.ones(min(iteration, 2) if iteration < 5 else 3))
        return 1.0

    loop = follow(6, 2, generation="0.16", loop_options={"model_seconds": model})
    counted = [(step, values["compile/recompiles"]) for step, values in loop.writer.logged]
    assert counted == [(1, 0.0), (2, 1.0), (4, 0.0), (6, 1.0)]
    (line,) = warned
    assert line.startswith(
        "iteration 6: torch.compile was at work on rank 0 since the last log: 1 "
    )


def test_a_wrapper_that_somebody_else_put_on_top_stays() -> None:
    shown: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_: shown.append(str(message))  # type: ignore[assignment]
        watch = CompileWatch()
        watch.start()
        ours = warnings.showwarning

        def theirs(*args: Any, **kwargs: Any) -> None:
            ours(*args, **kwargs)

        warnings.showwarning = theirs
        watch.stop()
        assert warnings.showwarning is theirs
        warnings.warn("still shown", stacklevel=1)
    assert shown == ["still shown"]


def test_a_line_that_does_not_format_is_nobodys_trouble(watch: CompileWatch) -> None:
    record = logging.LogRecord("torch", logging.WARNING, "", 0, "%d of %d", ("one",), None)
    (listener,) = logging.getLogger("torch._dynamo.convert_frame").handlers
    listener.handle(record)
    assert counts(watch) == dict.fromkeys(COUNTS, 0)


def test_a_run_that_ends_before_its_window_leaves_no_watch_behind() -> None:
    shown = warnings.showwarning
    of_the_run, of_the_window = CompileWatch(), CompileWatch()
    of_the_run.start()
    of_the_window.start()
    of_the_run.stop()
    of_the_window.stop()
    assert warnings.showwarning is shown
