# SPDX-License-Identifier: Apache-2.0
"""Whether a raw trace has spans of modules, whose backward spans can be drawn."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_builder import annotation, instant, op, text

from megatron.torch_trace.rewrite.backward_spans import stream
from megatron.torch_trace.rewrite.backward_spans.stream import has_module_spans

LAST = instant("Record Window End", 900_000)


def test_a_trace_with_a_span_of_a_module_is_told_from_others(tmp_path: Path) -> None:
    raw = tmp_path / "raw.json"
    others = [annotation("ProfilerStep#5", 0, 9), op("aten::mm", 1, 5)] * 2_000
    answers = []
    for span in ("mlp: Linear", "forward micro-batch 3", "mlp: Linear (weight gradient)"):
        for events in ([annotation(span, 1, 2), *others], [*others, annotation(span, 1, 2)]):
            raw.write_bytes(text(*events, LAST))
            answers.append(has_module_spans(raw))
    assert answers == [True, True, False, False, False, False]


def test_a_span_is_found_wherever_a_read_begins_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = tmp_path / "raw.json"
    raw.write_bytes(text(annotation("model: M", 1_000, 9_000), LAST))
    monkeypatch.setattr(stream, "_OVERLAP", 128)
    for size in range(129, 300):
        monkeypatch.setattr(stream, "_CHUNK", size)
        assert has_module_spans(raw)
