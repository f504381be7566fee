# SPDX-License-Identifier: Apache-2.0
"""`slim --preset perfetto` gives the same whether a block is cut up as text or decoded again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_builder import (
    LOOP,
    arrow_end,
    event,
    kernel,
    launch,
    metadata,
    step,
    strict,
    text,
    write,
)

from megatron.torch_trace.reader import cutter
from megatron.torch_trace.rewrite.selection import Selection
from megatron.torch_trace.rewrite.slim import undecoded_blocks
from megatron.torch_trace.rewrite.slim.slim import SlimResult, slim

NEVER = -1


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few events: only the last one of a file must be decoded in any case."""
    monkeypatch.setattr(cutter, "BLOCK_BYTES", 1000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("settled")


@pytest.fixture
def decoded_blocks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Offsets of the blocks of which not even the offsets were known."""
    missed: list[int] = []
    call = undecoded_blocks.UndecodedBlocks.__call__

    def watched(self: undecoded_blocks.UndecodedBlocks, raw: cutter.RawBlock) -> object:
        part = call(self, raw)
        if part is None:
            missed.append(raw.offset)
        return part

    monkeypatch.setattr(undecoded_blocks.UndecodedBlocks, "__call__", watched)
    return missed


def perfetto(folder: Path, data: bytes) -> tuple[SlimResult, dict[str, Any]]:
    out = folder / "out.json"
    path = write(folder / "in.json", data)
    result = slim(path, out, Selection(separate_tracks=True), force=True)
    return result, strict(out.read_bytes())


def shown(document: dict[str, Any]) -> list[str]:
    return sorted(json.dumps(e, sort_keys=True) for e in document["traceEvents"])


PADDING = [event(f"op{i}", 1000 * (i * 10 + 5000), 1_000) for i in range(16)]


def test_arrows_with_one_end_go_and_all_others_stay_where_they_stand(
    folder: Path, decoded_blocks: list[int]
) -> None:
    events = [
        launch(1_000, 2_000, 1), arrow_end("s", 1, 1_000),
        launch(3_000, 4_000, 2), arrow_end("s", 2, 3_000),
        kernel("k", 9_000, 10_000, 1, external=1), arrow_end("f", 1, 9_000, pid=0, tid=7),
    ]  # fmt: skip
    result, document = perfetto(folder, text(*events, *PADDING))
    expected = [json.loads(one) for one in (*events[:3], *events[4:], *PADDING)]
    assert document["traceEvents"] == expected
    assert result.before["ac2g"][0] == 3
    assert result.after["ac2g"] == [2, len(events[1]) + len(events[5])]
    assert len(decoded_blocks) == 1


def test_an_annotation_that_moves_takes_its_arrow_along(
    folder: Path, decoded_blocks: list[int]
) -> None:
    events = [
        event("op", 0, 50_000),
        step(1, 1_000, 21_000), arrow_end("s", 5, 1_000), arrow_end("s", 6, 2_000),
        event("child", 1_000, 2_000), arrow_end("s", 7, 1_000),
        event("end", 90_000, 1_000), *[arrow_end("f", i, 90_000) for i in (5, 6, 7)],
    ]  # fmt: skip
    result, document = perfetto(folder, text(*events, *PADDING))
    track = {e["name"]: e["tid"] for e in document["traceEvents"] if e["ph"] == "X"}
    own = track["ProfilerStep#1"]
    assert own != track["op"] == LOOP
    arrows = [(e["id"], e["ph"], e["tid"]) for e in document["traceEvents"] if e["ph"] in "sf"]
    assert arrows[:3] == [(5, "s", own), (6, "s", LOOP), (7, "s", LOOP)]
    assert arrows[3:] == [(5, "f", LOOP), (6, "f", LOOP), (7, "f", LOOP)]
    assert result.moved_annotations == 1
    assert len(decoded_blocks) == 1


def test_a_block_in_which_much_moves_and_a_damaged_one_are_decoded(
    folder: Path, decoded_blocks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(undecoded_blocks, "_FEW_CHANGES", 0)
    moving = [event("op", 0, 50_000), step(1, 1_000, 3_000)]
    damaged = [*PADDING[:4], event(r"C:\Users", 4_000_000), *PADDING[4:]]
    _, document = perfetto(folder, text(*moving, *PADDING, *damaged, *PADDING))
    assert [e["name"] for e in document["traceEvents"] if e["ph"] == "X"] == [
        "op", "ProfilerStep#1", *[f"op{i}" for i in range(16)],
        *[f"op{i}" for i in range(4)], r"C:\Users",
        *[f"op{i}" for i in range(4, 16)], *[f"op{i}" for i in range(16)],
    ]  # fmt: skip
    assert len(decoded_blocks) == 3


@st.composite
def traces(draw: st.DrawFn) -> list[str]:
    """Slices that nest, cross and overrun, on tracks that Perfetto takes or not, with arrows."""
    events = [metadata("thread_name", 42, LOOP, name="thread 42 (python)")]
    for number in range(draw(st.integers(1, 14))):
        ts, dur = draw(st.integers(0, 30)), draw(st.sampled_from([0, 1, 5, 20, 4_000_000, -2]))
        pid, tid = draw(st.sampled_from([(42, LOOP), (42, 0), (-1, 3), (0, 7), ("Spans", "x")]))
        category = draw(st.sampled_from(["cpu_op", "user_annotation", "kernel"]))
        name, start = f"e{number}", ts * 1000
        events.append(event(name, start, dur * 1000, cat=category, pid=pid, tid=tid))
        for phase in draw(st.lists(st.sampled_from("sf"), max_size=2)):
            at = draw(st.sampled_from([start, 3_000]))
            if isinstance(pid, int) and isinstance(tid, int):
                events.append(arrow_end(phase, draw(st.integers(1, 3)), at, pid=pid, tid=tid))
    return events


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(events=traces())
def test_events_and_accounts_are_those_of_decoding_every_block(
    folder: Path, events: list[str]
) -> None:
    data = text(*events, *PADDING)
    cut_up, as_text = perfetto(folder, data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(undecoded_blocks, "_FEW_CHANGES", NEVER)
        decoded, again = perfetto(folder, data)
    assert shown(as_text) == shown(again)
    assert {k: v for k, v in as_text.items() if k != "traceEvents"} == {
        k: v for k, v in again.items() if k != "traceEvents"
    }
    assert replace(cut_up, written_bytes=0) == replace(decoded, written_bytes=0)
