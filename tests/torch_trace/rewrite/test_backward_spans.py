# SPDX-License-Identifier: Apache-2.0
"""Backward spans of modules are drawn into a raw trace from autograd's numbers."""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from trace_builder import BACKWARD, annotation, instant, kernel, launch, op, text

from megatron.torch_trace.rewrite.backward_spans import event_columns
from megatron.torch_trace.rewrite.backward_spans.event_columns import EventColumns
from megatron.torch_trace.rewrite.backward_spans.pieces import Counts, Piece
from megatron.torch_trace.rewrite.backward_spans.raw_events import RawEvents
from megatron.torch_trace.rewrite.backward_spans.single_events import add_one_by_one
from megatron.torch_trace.rewrite.backward_spans.stream import with_backward_spans
from megatron.torch_trace.rewrite.backward_spans.text_words import BEFORE, BEYOND

DATA = Path(__file__).parents[2] / "data"
ENGINE = "autograd::engine::evaluate_function: "
LAST = instant("Record Window End", 900_000)
Slice = tuple[str, int, int, int]


def made(name: str, start: int, sequence: int, **more: Any) -> str:
    """An operator that makes a node."""
    return op(name, start, start + 100, args=numbered(sequence, 0), **more)


def ran(name: str, start: int, end: int, sequence: int | None, thread: int = 1) -> str:
    """The engine at work on a node."""
    args = {"Ev Idx": 1} if sequence is None else numbered(sequence, thread)
    return op(f"{ENGINE}{name}", start, end, tid=BACKWARD, args=args)


def numbered(sequence: int, thread: int) -> dict[str, int]:
    return {"External id": 1, "Sequence number": sequence, "Fwd thread id": thread, "Ev Idx": 1}


def blocks(data: bytes, size: int = 1 << 20) -> Iterator[bytes]:
    for begin in range(0, len(data), size):
        yield data[begin : begin + size]


def fail(error: Exception) -> None:
    raise error


def joined(pieces: Iterable[Piece]) -> bytes:
    """The text, in which what was counted is what is in it."""
    found = list(pieces)
    for piece in found:
        assert piece.counts in (None, Counts.of(bytes(piece.text)))
    return b"".join(piece.text for piece in found)


def drawn(*events: str, category: str = "user_annotation") -> list[Slice]:
    """Name, thread, begin and end in ns of each span that is new."""
    before = text(*events, LAST)
    after = json.loads(joined(with_backward_spans(blocks(before), fail)))["traceEvents"]
    assert after[: len(events) - 1] == json.loads(before)["traceEvents"][:-2]
    assert after[-1]["name"] == "Record Window End"
    return [
        (e["name"], e["tid"], round(e["ts"] * 1000), round((e["ts"] + e["dur"]) * 1000))
        for e in after[len(events) : -1]
        if e["cat"] == category
    ]


FORWARD = (
    annotation("model: M", 1_000, 9_000),
    annotation("norm: Norm", 2_000, 3_000),
    made("aten::native_layer_norm", 2_100, 5),
    annotation("mlp: Linear", 4_000, 6_000),
    made("aten::linear", 4_100, 6),
    made("aten::addmm", 4_110, 6),
    made("aten::mul", 7_000, 7),
)
PASS = (
    ran("MulBackward0", 20_000, 21_000, 7),
    ran("AddmmBackward0", 22_000, 24_000, 6),
    ran("torch::autograd::AccumulateGrad", 25_000, 26_000, None),
    ran("NativeLayerNormBackward0", 27_000, 28_000, 5),
)


def test_a_span_lasts_from_the_first_node_to_the_last_and_encloses_what_is_in_it() -> None:
    assert drawn(*FORWARD, *PASS) == [
        ("model: M (backward)", BACKWARD, 19_999, 28_002),
        ("mlp: Linear (backward)", BACKWARD, 21_999, 26_001),
        ("norm: Norm (backward)", BACKWARD, 26_999, 28_001),
    ]


def test_a_recomputed_module_has_the_backward_of_its_recomputation() -> None:
    checkpoint = ran("CheckpointFunctionBackward", 20_000, 60_000, 9)
    again = [
        annotation("mlp: Linear (recompute)", 30_000, 40_000, tid=BACKWARD),
        made("aten::addmm", 31_000, 0, tid=BACKWARD),
        ran("AddmmBackward0", 50_000, 51_000, 0, thread=2),
    ]
    outside = [annotation("layer: L", 1_000, 3_000), made("CheckpointFunction", 2_000, 9)]
    assert drawn(*outside, checkpoint, *again) == [
        ("layer: L (backward)", BACKWARD, 19_999, 60_001),
        ("mlp: Linear (backward)", BACKWARD, 49_999, 51_001),
    ]


def test_of_a_graph_that_is_run_twice_the_first_run_counts() -> None:
    again = [
        ran("AddmmBackward0", 50_000, 51_000, 6),
        ran("torch::autograd::AccumulateGrad", 52_000, 53_000, None),
    ]
    assert drawn(*FORWARD, *PASS, *again) == drawn(*FORWARD, *PASS)


def test_work_of_the_gpu_is_of_the_smallest_span_around_its_launch() -> None:
    work = [
        launch(22_100, 22_200, 1, tid=BACKWARD),
        kernel("gemm", 30_000, 31_000, 1),
        launch(22_300, 22_400, 2, tid=BACKWARD),
        kernel("gemm", 33_000, 34_000, 2),
        annotation("nccl:all_reduce", 25_100, 25_900, tid=BACKWARD),
        launch(25_300, 25_400, 3, tid=BACKWARD),
        kernel("ncclDevKernel", 35_000, 36_000, 3, stream=20),
        launch(20_500, 20_600, 4, tid=BACKWARD),
        kernel("memcpy", 29_000, 29_500, 4, cat="gpu_memcpy"),
        launch(7_050, 7_060, 5),
        kernel("mul", 8_000, 8_500, 5),
    ]
    assert drawn(*FORWARD, *PASS, *work, category="gpu_user_annotation") == [
        ("model: M (backward)", 7, 29_000, 29_500),
        ("mlp: Linear (backward)", 7, 30_000, 34_000),
    ]


@pytest.mark.parametrize(
    "events",
    [
        [*FORWARD, *PASS, annotation("mlp: Linear (backward)", 22_000, 26_000, tid=BACKWARD)],
        [*PASS, made("aten::addmm", 4_110, 6)],
        [*FORWARD],
        [annotation("mlp: Linear", 4_000, 6_000), *PASS],
    ],
    ids=["spans that are there", "no module", "no backward pass", "no operator without number"],
)
def test_where_there_is_nothing_to_draw_the_text_is_as_it_was(events: list[str]) -> None:
    before = text(*events, LAST)
    assert joined(with_backward_spans(blocks(before), fail)) == before


@pytest.mark.parametrize("data", [b"", b"{}", text(), text(LAST), b'{"traceEvents":[]}' * 9])
def test_what_kineto_did_not_write_so_is_as_it_was(data: bytes) -> None:
    assert joined(with_backward_spans(blocks(data, 5), fail)) == data


@pytest.mark.parametrize("size", [1, 7, 100, 1000])
def test_blocks_of_any_size_give_the_same(size: int) -> None:
    data = text(*FORWARD, *PASS, LAST)
    whole = joined(with_backward_spans([data], fail))
    assert joined(with_backward_spans(blocks(data, size), fail)) == whole
    assert whole != data


def test_the_layout_of_newer_torches_is_read_too() -> None:
    data = text(*FORWARD, *PASS, LAST).decode()
    lines = re.sub(r', "(cat|name|pid|tid|dur)"', r',\n    "\1"', data)
    found = [
        json.loads(joined(with_backward_spans([one.encode()], fail)))["traceEvents"]
        for one in (data, lines)
    ]
    assert found[0] == found[1]
    assert "mlp: Linear (backward)" in str(found[1])


LAUNCHES = (
    *(launch(22_100 + n, 22_101 + n, 9_999_990 + n, tid=BACKWARD) for n in range(20)),
    *(kernel(f"{{#{n}}}", 30_000 + n, 31_000, 9_999_990 + n, stream=n % 3) for n in range(20)),
)
ODD = [
    op("aten::mul", 7_100, 7_200, args={"Sequence number": 12_345_678_901, "Ev Idx": 1}),
    op("aten::mul", 7_100, 7_200, args={"Fwd thread id": 0, "Sequence number": 8}),
    op("aten::mul", 7_300, 7_400, args={"Sequence number": 1, "more": {"Sequence number": 2}}),
    op("aten::mul", 7_300, 7_400),
    launch(22_200, 22_201, 99_999_999, name="cudaEventRecord", tid=BACKWARD),
    launch(22_200, 22_201, 123_456_789_012, tid=BACKWARD),
    op("no link", 32_000, 33_000, cat="kernel", args={"device": 0}),
    op("no arguments", 32_000, 33_000, cat="kernel"),
    annotation("no arguments", 32_000, 33_000),
    kernel("k" * 300, 32_000, 33_000, 9_999_991),
    instant("aten::mul", 7_500),
]


def add_at_once(columns: EventColumns, events: bytes) -> Counts | None:
    """Within a text, as they are there."""
    before = b"\n".rjust(BEFORE)
    return columns.add(before + events + bytes(BEYOND), len(before), len(before + events))


def columns_of(events: RawEvents) -> list[list[list[int]]]:
    four = (events.operators, events.annotations, events.calls, events.gpu)
    return [one.tolist() for one in four]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("layout", ["torch 2.11", "newer"])
def test_thousands_at_once_are_what_they_are_one_by_one(odd: str, layout: str) -> None:
    data = text(*FORWARD, *LAUNCHES, odd, *PASS, LAST)
    if layout == "newer":
        data = re.sub(rb', "(cat|name|pid|tid|dur)"', rb',\n    "\1"', data)
    whole = data[: data.rindex(b"\n  },\n") + 6]
    at_once, single = RawEvents(), RawEvents()
    add_at_once(EventColumns(at_once), whole)
    add_one_by_one(single, whole)
    assert columns_of(at_once) == columns_of(single)
    assert list(at_once.names) == list(single.names)
    assert list(at_once.tracks) == list(single.tracks)


def test_events_in_one_line_are_counted_too() -> None:
    line = '  {"ph": "X", "cat": "kernel", "name": "gemm"},\n'
    data = text(*FORWARD, *PASS, LAST).replace(b'  {\n    "ph"', line.encode() + b'  {\n    "ph"')
    assert joined(with_backward_spans([data], fail)) != data


def test_what_kineto_writes_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_columns, "add_one_by_one", None)
    for name in RECORDED:
        data = gzip.decompress((DATA / name / "rank-0.pt.trace.json.gz").read_bytes())
        begin = data.index(b'  {\n    "ph": "')
        whole = data[begin : data.rindex(b"\n  },\n") + 6]
        for lines in (whole, re.sub(rb', "(cat|name|pid|tid|dur)"', rb',\n    "\1"', whole)):
            assert add_at_once(EventColumns(RawEvents()), lines)


RECORDED = ["dp2-spans", "ep2-spans", "pp2-recompute-spans", "tp2pp2-spans"]
_SPAN = re.compile(
    rb'  \{\n    "ph": "X", "cat": "(?:gpu_)?user_annotation", "name": "[^"\n]* \(backward\)", '
    rb"(?:(?!\n  \},?\n).)*\n  \},\n",
    re.DOTALL,
)


def spans(data: bytes, category: str) -> dict[tuple[str, int], list[tuple[float, float]]]:
    found = defaultdict(list)
    for e in json.loads(data)["traceEvents"]:
        if e.get("cat") == category and e["name"].endswith(" (backward)"):
            found[e["name"], e["tid"]].append((e["ts"], e["ts"] + e["dur"]))
    return {key: sorted(times) for key, times in found.items()}


@pytest.mark.parametrize("name", RECORDED)
def test_on_h200s_hooks_had_seen_the_same_spans(name: str) -> None:
    data = gzip.decompress((DATA / name / "rank-0.pt.trace.json.gz").read_bytes())
    bare = _SPAN.sub(b"", data)
    after = joined(with_backward_spans(blocks(bare), fail))
    hooked, found = spans(data, "user_annotation"), spans(after, "user_annotation")
    # Where the first stage's hooks never came to an end, the window ended before.
    assert set(hooked) <= set(found)
    for key, times in hooked.items():
        assert len(found[key]) == len(times)
        for (begin, end), (drawn_begin, drawn_end) in zip(times, found[key], strict=True):
            # A hook is called when the engine is at work on the node already.
            assert drawn_begin <= begin < drawn_end
            assert drawn_begin < end
    on_gpu, found_on_gpu = (spans(one, "gpu_user_annotation") for one in (data, after))
    begins = [
        drawn[0] - hook[0]
        for key, times in on_gpu.items()
        for hook, drawn in zip(times, found_on_gpu.get(key, times), strict=True)
    ]
    exact = [begin for begin in begins if abs(begin) < 0.002]
    assert len(exact) > 0.95 * len(begins)
