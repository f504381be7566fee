# SPDX-License-Identifier: Apache-2.0
"""Advice to who trains with a loop of another kind: the trace tells which loop it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trace_builder import GEMM, NCCL, TraceBuilder, collective_args

from megatron.torch_trace.analysis.findings.megatron_flags import flag_value, has_flag, is_megatron
from megatron.torch_trace.analysis.run.analyse import analyze

US, MS = 1_000, 1_000_000
CODE = "exposed_communication_dp"


def trace(group: str, **own: Any) -> TraceBuilder:
    made = TraceBuilder(0, 8, own=own).step(1, 0, MS).gpu(GEMM, 5 * US, 600 * US, launch=0)
    args = collective_args("allgather", "dp") | {"Process Group Description": group}
    return made.gpu(NCCL, 600 * US, MS, launch=10 * US, args=args)


def advice(tmp_path: Path, group: str, **own: Any) -> str:
    trace(group, **own).write(tmp_path / "rank-0.json")
    return next(one.advice for one in analyze(tmp_path).findings if one.code == CODE)


MEGATRONS = "DATA_PARALLEL_GROUP_WITH_CP"
ARGV = ["train.py", "--micro-batch-size", "4", "--overlap-grad-reduce"]


@pytest.mark.parametrize(
    ("group", "own", "said"),
    [
        (MEGATRONS, {"loop": "megatron", "argv": ["train.py"]}, "(`--overlap-grad-reduce`"),
        (MEGATRONS, {"loop": "megatron-bridge"}, "(in Megatron: `--overlap-grad-reduce`"),
        ("mesh_dp", {"loop": "megatron"}, "(`--overlap-grad-reduce`"),
        ("mesh_dp", {"loop": "pytorch", "argv": ["megatron_like.py"]}, "(in Megatron:"),
        ("mesh_dp", {"loop": "pytorch", "argv": ARGV}, "Reduce gradients and gather parameters"),
        (
            MEGATRONS,
            {"loop": 3, "argv": ARGV},
            "Find out why nothing overlaps, although the overlap",
        ),
    ],
)
def test_flags_are_an_instruction_only_where_they_can_be_given(
    group: str, own: dict[str, Any], said: str, tmp_path: Path
) -> None:
    assert said in advice(tmp_path, group, **own)


def test_nothing_is_recommended_that_the_loops_configuration_has_on(tmp_path: Path) -> None:
    on = ["--overlap-grad-reduce", "--use-distributed-optimizer"]
    assert advice(tmp_path, MEGATRONS, loop="megatron-bridge", flags=on) == (
        "Gather parameters while the forward pass computes (in Megatron: "
        "`--overlap-param-gather`): only the overlap of gradients is on yet."
    )


def test_settings_of_a_loop_are_read_as_flags_are(tmp_path: Path) -> None:
    own = {"loop": "nemo", "flags": ["--cuda-graph-impl=local"], "argv": ["--transformer-impl=x"]}
    trace(MEGATRONS, **own).write(tmp_path / "rank-0.json")
    ranks = analyze(tmp_path).ranks
    assert not is_megatron(ranks)
    assert flag_value(ranks, "--cuda-graph-impl") == "local"
    assert not has_flag(ranks, "--transformer-impl"), "its command line is its own"
    assert ranks[0].argv == ("--transformer-impl=x",)
    assert ranks[0].loop == "nemo"
