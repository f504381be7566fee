# SPDX-License-Identifier: Apache-2.0
"""Work whose launch no correlation tells: arrows and External id lead to it, or it is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trace_builder import TraceBuilder, arrow_end

from megatron.torch_trace import analyze
from megatron.torch_trace.analysis.gpu_work.kernels import BEFORE, NO_LINK
from megatron.torch_trace.analysis.run.rank import analyse_rank

KERNEL = "Cijk_Alik_Bljk_demo"


def trace(
    *, ids: bool = False, arrows: bool = False, calls: bool = True, correlations: bool = False
) -> TraceBuilder:
    """Two operators; the first launches one kernel, the second two."""
    found = TraceBuilder().step(1, 0, 1_000)
    for number, (name, begin, launches) in enumerate(
        (("aten::mm", 100, (110,)), ("aten::addmm", 300, (310, 350))), start=5
    ):
        own = {"External id": number} if ids else {}
        found.op(name, begin, begin + 90, args=own)
        for at in launches:
            given: dict[str, Any] = {**own, "device": 2, "stream": 0}
            if correlations:
                given["correlation"] = 1_000 + at
            if calls:
                found.call("hipExtModuleLaunchKernel", at, at + 5, args=own)
            if arrows:
                found.add(arrow_end("s", at, at), arrow_end("f", at, at + 20, pid=2, tid=0))
            found.slice("kernel", KERNEL, at + 20, 15, pid=2, tid=0, args=given)
    return found


@pytest.mark.parametrize("how", [{"ids": True}, {"arrows": True}, {"ids": True, "arrows": True}])
def test_arrows_or_external_ids_tell_the_launch_where_there_is_no_correlation(
    tmp_path: Path, how: dict[str, bool]
) -> None:
    result = analyse_rank(trace(**how).write(tmp_path / "rank-0.json")).result
    assert {(row.operator, row.kernels, row.launches) for row in result.operators} == {
        ("aten::mm", 1, 1),
        ("aten::addmm", 2, 1),
    }
    launches = result.launches
    assert (launches.launches, launches.without_kernel, launches.delay_max_ns) == (3, 0, 20)
    assert (launches.work_without_launch, launches.work_without_link) == (0, 0)
    assert result.host.idle.unknown_ns == 0
    assert result.breakdown is not None


@pytest.mark.parametrize("correlations", [False, True])
def test_without_calls_an_external_id_tells_the_operator_and_no_delay(
    tmp_path: Path, correlations: bool
) -> None:
    path = trace(ids=True, calls=False, correlations=correlations).write(tmp_path / "rank-0.json")
    result = analyse_rank(path).result
    assert {(row.operator, row.kernels) for row in result.operators} == {
        ("aten::mm", 1),
        ("aten::addmm", 2),
    }
    assert (result.launches.launches, result.launches.delay_median_ns) == (0, None)
    # Why the GPU was idle before work of which no call is known, is unknown.
    assert result.host.idle.unknown_ns == 955


@pytest.mark.parametrize("calls", [False, True])
def test_where_nothing_tells_the_launch_that_is_said_and_not_that_it_was_before(
    tmp_path: Path, calls: bool
) -> None:
    analysis = analyze(trace(calls=calls).write(tmp_path / "rank-0.json"))
    assert [(row.operator, row.kernels) for row in analysis.ranks[0].operators] == [(NO_LINK, 3)]
    assert analysis.ranks[0].breakdown is not None
    assert [(finding.code, finding.title) for finding in analysis.findings] == [
        (
            "launch_not_recorded",
            "Nothing in the trace shows what launched 100 % of the GPU work in the window (rank "
            "0): no "
            "correlation, External id or arrow leads to a call. Compute, communication and copies "
            "are known; the operators of that work and the reason of idle time are not.",
        )
    ]


def test_work_with_a_correlation_whose_call_is_not_there_was_launched_before(
    tmp_path: Path,
) -> None:
    found = TraceBuilder().step(1, 0, 100).gpu(KERNEL, 10, 20).gpu(KERNEL, 30, 40, launch=25)
    result = analyse_rank(found.write(tmp_path / "rank-0.json")).result
    assert BEFORE in [row.operator for row in result.operators]
    assert (result.launches.work_without_launch, result.launches.work_without_link) == (1, 0)
