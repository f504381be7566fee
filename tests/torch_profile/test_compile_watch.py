# SPDX-License-Identifier: Apache-2.0
"""Real torch.compile, real warnings: what is counted, and that everything is put back."""

from __future__ import annotations

import logging
import math
import sys
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from megatron.torch_profile.compile_watch import COUNTS, CompileWatch


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
