# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

from trace_builder import BACKWARD, GEMM, SENDRECV, TraceBuilder, collective_args

from megatron.torch_trace.analysis.run.rank import analyse_rank
from megatron.torch_trace.analysis.schedule.microbatches import BubbleRow


def test_of_a_single_step_the_bubble_before_work_that_ends_behind_it_is_of_that_micro_batch(
    tmp_path: Path,
) -> None:
    trace = TraceBuilder(0, 2).step(1, 0, 1000).step(2, 1000, 2000)
    trace.annotation("forward micro-batch 0 (steady)", 10, 100).gpu(GEMM, 100, 300, launch=50)
    trace.op("record_param_comms", 110, 111, args=collective_args("recv", "pp"))
    trace.annotation("nccl:coalesced", 112, 120).gpu(SENDRECV, 300, 500, launch=115, stream=9)
    trace.annotation("backward micro-batch 0 (cooldown)", 200, 900)
    trace.gpu(GEMM, 600, 1100, launch=250, tid=BACKWARD)
    result = analyse_rank(trace.write(tmp_path / "rank-0.json"), step=1).result
    assert [(one.start_ns, one.end_ns, one.bubble_ns) for one in result.pipeline] == [
        (100, 1000, 300)
    ]
    assert result.bubble == (BubbleRow("steady", 1, 0), BubbleRow("cooldown", 1, 300))
