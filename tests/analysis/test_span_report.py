# SPDX-License-Identifier: Apache-2.0
"""What the report shows of spans: phases, micro-batches, the tree of modules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from trace_builder import BACKWARD, GEMM, NCCL, TraceBuilder

from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.analysis.run.analyse import analyze
from megatron.torch_trace.report.section import Subject
from megatron.torch_trace.report.sections import modules, phases
from megatron.torch_trace.report.table import render_section

US = 1000


def tree(analysis: Analysis, width: int, top: int) -> list[str]:
    """Lines of the section of modules on a terminal."""
    return render_section(modules.section(Subject(analysis, top=top)), width)


def stage(rank: int = 0, layers: int = 2, prefix: str = "") -> TraceBuilder:
    """Layers one after the other, forward and backward; the n-th has n ms more on the GPU."""
    coordinates = {"pp": rank}
    trace = TraceBuilder(rank, 2, own={"coordinates": coordinates}).step(1, 0, 1_000_000 * US)
    trace.annotation("forward micro-batch 0 (steady)", 0, 900 * US)
    trace.annotation(f"{prefix}decoder: TransformerBlock", US, 900 * US)
    trace.annotation("backward micro-batch 0 (steady)", 1000 * US, 1900 * US)
    at = 2000 * US
    for number in range(layers):
        start = (10 + 20 * number) * US
        name = f"{prefix}decoder.layers.{number}"
        trace.annotation(f"{name}: TransformerLayer", start, start + 10 * US)
        trace.annotation(f"{name}.mlp: MLP", start + US, start + 5 * US)
        end = at + (1 + number) * 1000 * US
        trace.gpu(GEMM, at, end, launch=start + 2 * US)
        back = start + 1000 * US
        trace.annotation(f"{name}.mlp: MLP (backward)", back, back + 5 * US, tid=BACKWARD)
        trace.gpu(GEMM, end, end + 1000 * US, launch=back + US, tid=BACKWARD)
        at = end + 1000 * US
    trace.op("aten::sum", 1800 * US, 1850 * US).gpu(GEMM, at, at + 1000 * US, launch=1810 * US)
    return trace


def test_layers_are_one_line_of_the_tree_and_have_their_times_below_it(tmp_path: Path) -> None:
    analysis = analyze(stage().write(tmp_path / "rank-0.json"))
    assert tree(analysis, 100, 5) == [
        "MODULES (ms and share of the GPU work they launched): rank 0",
        "  module          class             calls  forward  backward  share",
        "  decoder         TransformerBlock      1     3.00      2.00   83 %",
        "    layers.0-1    TransformerLayer      2     3.00      2.00   83 %",
        "      mlp         MLP                   2     3.00      2.00   83 %",
        "  (in no module)                                               17 %",
        "  In no module, ms: aten::sum 1.00. Within micro-batches 17 % is in no module.",
        "  TFLOP/s are unknown without shapes (--torch-profile-record-shapes).",
        "  Layers 0-1, ms: 2.00, 3.00.",
    ]


def test_a_collective_in_a_layers_hooks_does_not_make_the_layer_longer(tmp_path: Path) -> None:
    trace = stage().gpu(NCCL, 9_000 * US, 59_000 * US, launch=1032 * US, tid=BACKWARD, stream=9)
    analysis = analyze(trace.write(tmp_path / "rank-0.json"))
    assert "  Layers 0-1, ms without communication: 2.00, 3.00." in tree(analysis, 100, 5)


def test_the_heaviest_modules_stay_and_of_many_layers_the_extremes(tmp_path: Path) -> None:
    analysis = analyze(stage(layers=20).write(tmp_path / "rank-0.json"))
    assert tree(analysis, 80, 1) == [
        "MODULES (ms and share of the GPU work they launched): rank 0",
        "  module          calls  forward  backward   share",
        "  decoder             1      210      20.0  99.6 %",
        "    layers.0-19      20      210      20.0  99.6 %",
        "  (in no module)                             0.4 %",
        "  In no module, ms: aten::sum 1.00. Within micro-batches 0.4 % is in no module.",
        "  TFLOP/s are unknown without shapes (--torch-profile-record-shapes).",
        "  20 layers, ms: from 2.00 (layer 0) to 21.0 (layer 19).",
    ]


def test_the_model_is_the_root_and_has_a_part_of_its_own(tmp_path: Path) -> None:
    trace = stage().annotation("model: GPTModel", 0, 950 * US)
    trace.gpu(GEMM, 10_000 * US, 10_500 * US, launch=920 * US)
    analysis = analyze(trace.write(tmp_path / "rank-0.json"))
    assert tree(analysis, 100, 5)[:7] == [
        "MODULES (ms and share of the GPU work they launched): rank 0",
        "  module          class             calls  forward  backward  share",
        "  model           GPTModel              1     3.50      2.00   85 %",
        "    (itself)                                  0.50         -  7.7 %",
        "    decoder       TransformerBlock      1     3.00      2.00   77 %",
        "      layers.0-1  TransformerLayer      2     3.00      2.00   77 %",
        "        mlp       MLP                   2     3.00      2.00   77 %",
    ]


def test_speeds_stand_beside_the_modules_whose_flops_are_known(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 10_000 * US)
    trace.annotation("mlp: MLP", 0, 100).annotation("mlp.fc1: Linear", 10, 50)
    shapes = {"Input Dims": [[1000, 1000], [1000, 1000]]}
    trace.op("aten::mm", 20, 30, args=shapes).gpu(GEMM, US, 20 * US, launch=25)
    trace.op("mine::product", 60, 70, args=shapes).gpu(GEMM, 50 * US, 60 * US, launch=65)
    analysis = analyze(trace.write(tmp_path / "rank-0.json"))
    assert tree(analysis, 80, 5) == [
        "MODULES (ms and share of the GPU work they launched): rank 0",
        "  module      calls  forward  share  TFLOP/s",
        "  mlp             1    0.029  100 %        -",
        "    (itself)           0.010   34 %",
        "    fc1           1    0.019   66 %      105",
    ]


def test_what_the_stages_compute_stands_below_their_trees(tmp_path: Path) -> None:
    for rank in (0, 1):
        trace = stage(rank, layers=2 + rank)
        trace.annotation("embedding: Embedding", 960 * US, 970 * US)
        trace.gpu(GEMM, 100_000 * US, 100_250 * US, launch=965 * US)
        trace.write(tmp_path / f"rank-{rank}.json")
    lines = tree(analyze(tmp_path), 80, 5)
    assert lines[lines.index("") + 1 :][-4:] == [
        "STAGES (GPU work of modules, ms an iteration without communication)",
        "  stage  ranks  layers  one layer  all layers  embedding  other  total",
        "      0  0           2       2.50        5.00       0.25   1.00   6.25",
        "      1  1           3       3.00        9.00       0.25   1.00   10.2",
    ]


def test_of_many_stages_the_text_shows_the_first(tmp_path: Path) -> None:
    analysis = analyze(stage().write(tmp_path / "rank-0.json"))
    many = tuple(replace(analysis.stages[0], stage=number) for number in range(18))
    lines = tree(replace(analysis, stages=many), 80, 1)
    assert lines[-1] == "  2 more rows: --json has them."


def test_modules_of_stacks_are_named_by_their_classes(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 10_000 * US)
    for name, start, end in (("GPT_0", 0, 100), ("Layer_0", 10, 40), ("Layer_1", 50, 90)):
        trace.slice("python_function", f"nn.Module: {name}", start, end - start)
        trace.gpu(GEMM, (1 + start) * US, (2 + start) * US, launch=start + 5)
    lines = tree(analyze(trace.write(tmp_path / "rank-0.json")), 100, 5)
    assert lines[:5] == [
        "MODULES (ms and share of the GPU work they launched): rank 0, from Python stacks",
        "  module       calls  forward  share",
        "  GPT              1    0.003  100 %",
        "    (itself)            0.001   33 %",
        "    Layer.0-1      2    0.002   67 %",
    ]


def test_virtual_stages_are_trees_of_their_own(tmp_path: Path) -> None:
    analysis = analyze(stage(prefix="chunk1.").write(tmp_path / "rank-0.json"))
    assert tree(analysis, 80, 5)[2:5] == [
        "  chunk1.decoder      1     3.00      2.00   83 %",
        "    layers.0-1        2     3.00      2.00   83 %",
        "      mlp             2     3.00      2.00   83 %",
    ]


def test_several_models_have_trees_and_phases_of_their_own(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 1_000_000 * US)
    for at, name in ((0, "actor"), (2000, "critic")):
        begin, end = at * US, (at + 900) * US
        trace.annotation(f"forward micro-batch 0 of {name}", begin, end)
        trace.annotation(f"{name}: GPTModel", begin + US, end - US)
        trace.annotation(f"{name}.decoder: TransformerBlock", begin + 2 * US, end - 100 * US)
        trace.gpu(GEMM, begin + 10 * US, begin + 1010 * US, launch=begin + 5 * US)
        trace.gpu(GEMM, begin + 1010 * US, begin + 1510 * US, launch=end - 50 * US)
    analysis = analyze(trace.write(tmp_path / "rank-0.json"))
    assert [line.split() for line in tree(analysis, 80, 5)[2:8]] == [
        [*words, share, "%"]
        for name in ("actor", "critic")
        for words, share in (
            ((name, "1", "1.50"), "50"),
            (("(itself)", "0.50"), "17"),
            (("decoder", "1", "1.00"), "33"),
        )
    ]
    shown = render_section(phases.section(Subject(analysis)), 80)
    assert shown == [
        "PHASES (ms; they nest): rank 0",
        "  phase                          calls   CPU  GPU work  exposed comm",
        "  forward micro-batch of actor       1  0.90      1.50             -",
        "  forward micro-batch of critic      1  0.90      1.50             -",
        "",
        "MICRO-BATCHES (ms, means; the longest on the CPU and the one with most GPU work)",
        "  rank model  pass    in 1F1B count  CPU longest (which) GPU work most (which)",
        "     0 actor  forward -           1 0.90       0.90 (#0)     1.50    1.50 (#0)",
        "     0 critic forward -           1 0.90       0.90 (#0)     1.50    1.50 (#0)",
    ]


def test_on_the_cpu_the_models_stand_beside_the_times_that_there_are(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 3000 * US)
    for at, name in ((0, "actor"), (1000, "critic")):
        trace.annotation(f"forward micro-batch 0 of {name}", at * US, (at + 900) * US)
        trace.op("aten::mm", (at + 10) * US, (at + 20) * US)
    analysis = analyze(trace.write(tmp_path / "rank-0.json"))
    assert render_section(phases.section(Subject(analysis)), 80)[-3:] == [
        "  rank  model   pass     in 1F1B  count   CPU  longest (which)",
        "     0  actor   forward  -            1  0.90        0.90 (#0)",
        "     0  critic  forward  -            1  0.90        0.90 (#0)",
    ]


def test_the_first_and_the_last_stage_stand_beside_each_other(tmp_path: Path) -> None:
    for rank in (0, 1):
        stage(rank).write(tmp_path / f"rank-{rank}.json")
    assert render_section(phases.section(Subject(analyze(tmp_path))), 80) == [
        "PHASES (ms; they nest): rank 0, stage 0; rank 1, stage 1",
        "  phase                 rank  calls   CPU  GPU work  exposed comm",
        "  backward micro-batch     0      1  0.90      3.00             -",
        "  backward micro-batch     1      1  0.90      3.00             -",
        "  forward micro-batch      0      1  0.90      3.00             -",
        "  forward micro-batch      1      1  0.90      3.00             -",
        "",
        "MICRO-BATCHES (ms, means; the longest on the CPU and the one with most GPU work)",
        "  rank  pass      in 1F1B  count   CPU  longest (which)  GPU work  most (which)",
        "     0  forward   steady       1  0.90        0.90 (#0)      3.00     3.00 (#0)",
        "     0  backward  steady       1  0.90        0.90 (#0)      3.00     3.00 (#0)",
        "     1  forward   steady       1  0.90        0.90 (#0)      3.00     3.00 (#0)",
        "     1  backward  steady       1  0.90        0.90 (#0)      3.00     3.00 (#0)",
    ]
