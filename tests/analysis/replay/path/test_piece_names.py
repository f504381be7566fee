# SPDX-License-Identifier: Apache-2.0
"""What a path ran through is called: by micro-batch, phase, annotation, thread, collective."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from trace_builder import BACKWARD, TraceBuilder

from megatron.torch_trace.analysis.communication.collectives import attribute
from megatron.torch_trace.analysis.replay.kernels.graph import GraphBuilder
from megatron.torch_trace.analysis.replay.kernels.rank_graph import add_rank
from megatron.torch_trace.analysis.replay.path.piece_names import PieceNames
from megatron.torch_trace.columns.intervals import ints


def names_of(trace: TraceBuilder, folder: Path) -> PieceNames:
    timeline = trace.timeline(folder)
    rank = add_rank(GraphBuilder(), timeline, 0, 0, 0)
    return PieceNames(rank, attribute(timeline))


def built() -> TraceBuilder:
    trace = TraceBuilder(0, 2).step(1, 0, 200_000)
    trace.annotation("forward-backward", 10_000, 100_000)
    trace.annotation("forward micro-batch 3", 20_000, 60_000)
    trace.annotation("loss", 30_000, 40_000)
    trace.annotation("optimizer", 110_000, 150_000)
    trace.annotation("nccl:all_reduce", 120_000, 130_000)
    trace.annotation("my range", 160_000, 170_000)
    trace.annotation("## Call CompiledFxGraph abc ##", 162_000, 168_000)
    trace.gpu("gemm", 61_000, 70_000, launch=35_000)
    trace.gpu("gemm", 181_000, 190_000, launch=180_000)
    trace.gpu("back", 62_000, 63_000, launch=60_500, tid=BACKWARD)
    return trace.collective(71_000, 80_000, launch=36_000, dimension="tp")


@pytest.mark.parametrize(
    ("time", "thread", "name"),
    [
        (35_000, 42, "forward micro-batch 3"),  # whatever is annotated in it
        (35_000, BACKWARD, "forward micro-batch 3"),
        (70_000, 42, "forward-backward"),
        (125_000, 42, "optimizer"),
        (165_000, 42, "my range"),
        (165_000, BACKWARD, "backward pass"),
        (180_000, 42, "training loop"),
    ],
)
def test_of_the_cpu_the_micro_batch_comes_first_then_the_phase_then_what_is_annotated(
    time: int, thread: int, name: str, tmp_path: Path
) -> None:
    names = names_of(built(), tmp_path)
    track = names.activity.tracks.index((42, thread))
    assert names.cpu(ints([time]), ints([track])) == [name]


def test_of_the_gpu_the_phase_that_launched_it_is_named_and_of_a_collective_its_dimension(
    tmp_path: Path,
) -> None:
    names = names_of(built(), tmp_path)
    by_start = ints(np.argsort(names.activity.gpu.start))
    assert names.compute(by_start[[0, 1, 3]]) == [
        "forward micro-batch 3",
        "forward-backward",
        "gemm",
    ]
    rows = names.activity.gpu.name.tolist()
    told = {names.activity.names[code]: names.communication(row) for row, code in enumerate(rows)}
    (nccl,) = (one for one in told if one.startswith("nccl"))
    assert told == {"gemm": "communication", "back": "communication", nccl: "tp allreduce"}


def test_a_function_is_one_of_a_file_and_no_built_in_one(tmp_path: Path) -> None:
    trace = built()
    for name, start, end in (
        ("train.py(7): step", 0, 100_000),
        ("nn.Module: MLP_0", 10_000, 90_000),
        ("<built-in method wait>", 20_000, 80_000),
    ):
        trace.slice("python_function", name, start, end - start)
    names = names_of(trace, tmp_path)
    track = names.activity.tracks.index((42, 42))
    assert names.function(50_000, track) == "train.py(7): step"
    assert names.function(150_000, track) is None
