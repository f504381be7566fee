# SPDX-License-Identifier: Apache-2.0
"""Modules of which none is a layer: their figures are there, and the page with them."""

from __future__ import annotations

from pathlib import Path

from trace_builder import GEMM, TraceBuilder

from megatron.torch_trace.analysis.run.analyse import analyze
from megatron.torch_trace.report.html import render_html

MS = 1_000_000


def test_modules_without_layers_are_an_icicle_and_no_bars_of_layers(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 100 * MS).annotation("encoder: Encoder", 0, 20 * MS)
    trace.annotation("encoder.mlp: MLP", MS, 10 * MS).gpu(GEMM, 5 * MS, 15 * MS, launch=2 * MS)
    trace.gpu(GEMM, 15 * MS, 20 * MS, launch=12 * MS).write(tmp_path / "rank-0.json")
    page = render_html(analyze(tmp_path, jobs=1))
    modules = page[page.index('<section id="modules"') : page.index('<section id="work"')]
    assert 'class="columns"' not in modules
    assert modules.count('<figure class="icicle"') == 1
    assert 'title="encoder: 15 ms an iteration, 100 % of the GPU work"' in modules
    assert 'title="encoder.mlp: 10 ms an iteration, 67 % of the GPU work"' in modules
