# SPDX-License-Identifier: Apache-2.0
"""From which difference on two runs do not do the same work."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from megatron.torch_trace.analysis.compare.different_work import WorkAmount, different_work
from megatron.torch_trace.analysis.compare.statistics import Difference
from megatron.torch_trace.analysis.compare.tables import CommunicationDifference, WorkDifference

Amount = float | None


def flops(amount: Amount) -> Any:
    """An analysis that knows the FLOPs of the model."""
    return SimpleNamespace(mfu=SimpleNamespace(model_flops=amount))


def family(name: str, before: Amount, after: Amount) -> WorkDifference:
    return WorkDifference(name, "", Difference(before, after), Difference(None, None))


def sent(
    dimension: str, before: Amount, after: Amount, *, calls: float = 1.0
) -> CommunicationDifference:
    nothing = Difference(None, None)
    size, count = Difference(before, after), Difference(calls, calls)
    return CommunicationDifference(
        dimension, "1", "allreduce", count, nothing, nothing, nothing, size, nothing
    )


@pytest.mark.parametrize(
    ("before", "after", "differs"),
    [(1e3, 1_005.0, False), (1e3, 1_006.0, True), (1_006.0, 1e3, True), (None, 9.0, False)],
)  # fmt: skip
def test_flops_differ_from_half_a_percent_on(before: Amount, after: Amount, differs: bool) -> None:
    found = different_work(flops(before), flops(after), [], [])
    assert found == ((WorkAmount("model FLOPs", "", before or 0, after or 0),) if differs else ())


@pytest.mark.parametrize(
    ("rows", "different"),
    [
        ([family("gemm", 98, 100)], ()),
        ([family("gemm", 97, 100)], (WorkAmount("kernels", "gemm", 97, 100),)),
        ([family("attention", 100, 97)], (WorkAmount("kernels", "attention", 100, 97),)),
        # How many of other families there are says nothing of the model.
        ([family("gemm", 100, 100), family("elementwise", 100, 900)], ()),
        ([family("gemm", 100, 100), family("attention", None, 8)],
         (WorkAmount("kernels", "attention", 0, 8),)),
        # A side without any kernel does not know its GPU.
        ([family("gemm", 100, None), family("attention", 8, None)], ()),
    ],
)  # fmt: skip
def test_kernels_of_the_model_differ_from_2_percent_on(
    rows: list[WorkDifference], different: tuple[WorkAmount, ...]
) -> None:
    assert different_work(flops(None), flops(None), rows, []) == different


@pytest.mark.parametrize(
    ("rows", "different"),
    [
        ([sent("dp", 90, 100)], ()),
        ([sent("dp", 89, 100)], (WorkAmount("bytes", "dp", 89, 100),)),
        ([sent("dp", 50, 60), sent("dp", 30, 60)], (WorkAmount("bytes", "dp", 80, 120),)),
        # One of unknown size makes the sum unknown, unless it is never called.
        ([sent("dp", 50, 100), sent("dp", None, 7)], ()),
        ([sent("dp", 50, 100), sent("dp", None, None, calls=0)],
         (WorkAmount("bytes", "dp", 50, 100),)),
        # What only one side has is of another layout.
        ([sent("tp", 0, 100)], ()),
        ([sent("tp", 100, 0)], ()),
    ],
)  # fmt: skip
def test_bytes_of_a_dimension_differ_from_10_percent_on(
    rows: list[CommunicationDifference], different: tuple[WorkAmount, ...]
) -> None:
    assert different_work(flops(None), flops(None), [], rows) == different
