# SPDX-License-Identifier: Apache-2.0
"""What a profiler recorded after its window had ended is cut out of the trace's text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from trace_builder import event, text, write

from megatron.torch_profile.export import late_events
from megatron.torch_profile.export.compression import compress
from megatron.torch_profile.export.late_events import WINDOW_END, window_end, without_late

END = "5017232235661.859"


def at(ts: str, name: str, ph: str = "X") -> str:
    """An event with arguments, whose end on a line of its own is not that of the event."""
    return event(name, ts, ph=ph, args='"Ev Idx": 1')


def kept(folder: Path, *events: str, block: int = 1 << 20) -> list[str]:
    """Names of what is left, in blocks of so many bytes."""
    raw = write(folder / "raw.json", text(*events))
    late = window_end(raw)
    assert late is not None

    def blocks() -> Iterator[bytes]:
        data = raw.read_bytes()
        for begin in range(0, len(data), block):
            yield data[begin : begin + block]

    left = json.loads(b"".join(without_late(blocks(), late)))
    return [e["name"] for e in left["traceEvents"]]


MARK = at(END, WINDOW_END)
LAST = at("5017239000000.000", "Record Window End", "i")


@pytest.mark.parametrize(
    ("ts", "stays"),
    [
        ("5017232235661.858", True),
        ("5017232235661.859", False),
        ("5017232235661.860", False),
        ("5017232235661.900", False),
        ("5017232235660.999", True),
        ("5017232235662.000", False),
        ("5017232235700.000", False),
        ("5017300000000.000", False),
        ("6000000000000.000", False),
        ("10000000000000.000", False),
        ("4999999999999.999", True),
        ("99.999", True),
        ("9.000", True),
        ("0.000", True),
        ("5017232235661", True),
        ("5017232235662", False),
    ],
)
def test_an_event_stays_where_it_begins_before_the_end(
    tmp_path: Path, ts: str, stays: bool
) -> None:
    assert ("it" in kept(tmp_path, MARK, at(ts, "it"), LAST)) == stays


@pytest.mark.parametrize("block", [1, 7, 64, 200, 1 << 20])
def test_what_is_cut_out_does_not_depend_on_the_blocks_it_is_read_in(
    tmp_path: Path, block: int
) -> None:
    late = "5017232235999.000"
    events = [
        at(late, "late kernel"),
        at("5017232235000.000", "early"),
        at(late, "late"),
        at(late, "late too"),
        MARK,
        at(late, "thread_name", "M"),
        at("5017232235000.001", "early too"),
        at(late, "late again"),
        LAST,
    ]
    assert kept(tmp_path, *events, block=block) == [
        "early",
        "thread_name",
        "early too",
        "Record Window End",
    ]


def test_a_mark_across_two_blocks_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = write(tmp_path / "raw.json", text(at("1.000", "early"), MARK, LAST))
    for size in range(20, 200, 3):
        monkeypatch.setattr(late_events, "_CHUNK", size)
        late = window_end(raw)
        assert late is not None
        assert late.search(f'"ts": {END}'.encode())


def test_without_a_mark_nothing_is_late(tmp_path: Path) -> None:
    raw = write(tmp_path / "raw.json", text(at("1.000", "early"), LAST))
    assert window_end(raw) is None


def test_text_in_another_format_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_events, "_LONGEST", 10)
    late = late_events._not_before(b"5", b"000")
    blocks = [b'{"traceEvents": [{"ts": 9.000}', b', {"ts": 9.000}]}']
    assert b"".join(without_late(blocks, late)) == b"".join(blocks)


def test_the_size_of_a_trace_is_without_them(tmp_path: Path) -> None:
    # From it follows what size the next window is expected to have.
    late = [at("5017232235900.000", f"late {number}") for number in range(100)]
    raw = write(tmp_path / "raw.json", text(at("9.000", "kept"), MARK, *late, LAST))
    written = compress(raw, tmp_path / "trace.json", "none", drop_late=True)
    assert written.raw_bytes == written.file_bytes == (tmp_path / "trace.json").stat().st_size
    assert written.events == 2
