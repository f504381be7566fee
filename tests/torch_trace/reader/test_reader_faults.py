# SPDX-License-Identifier: Apache-2.0
"""Each fault that real traces have: what is read all the same, and what is told about it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from trace_builder import HEADER, TAIL, event, kernel, launch, text, write

from megatron.torch_trace.columns.slice_table import read_table
from megatron.torch_trace.errors import StrictError
from megatron.torch_trace.files.sources import read_metadata
from megatron.torch_trace.reader import NotATraceError, SlimEvent, Trace

BEFORE, AFTER = event("before", 1_000), event("after", 9_000)


def read(path: Path) -> tuple[list[str], dict[str, int], Trace]:
    """(names of the events, faults by kind, the trace after reading)."""
    trace = Trace(path)
    found = [json.loads(t)["name"] for block in trace.blocks(SlimEvent) for t in block.texts]
    return found, dict(trace.damage.counts), trace


def read_data(tmp_path: Path, data: bytes) -> tuple[list[str], dict[str, int], Trace]:
    return read(write(tmp_path / "rank-0.json", data))


def test_a_clean_trace_is_read_whole_and_nothing_is_reported(tmp_path: Path) -> None:
    found, faults, trace = read_data(tmp_path, text(BEFORE, event("x"), AFTER))
    assert (found, faults) == (["before", "x", "after"], {})
    assert trace.metadata.rank == 3
    assert trace.metadata.get("traceName") == "trace.json"


@pytest.mark.parametrize(
    ("broken", "mended", "kind"),
    [
        ("<built-in \udcfe\udcff>", "<built-in ��>", "not_utf8"),
        ("config.py\x01x", "config.py\x01x", "control_character"),
        ("a\tb", "a\tb", "control_character"),
        ("a\nb", "a\nb", "control_character"),
        ("a\x00b", "a\x00b", "control_character"),
        (r"C:\Users\x", r"C:\Users\x", "stray_backslash"),
        (r"regex \d+", r"regex \d+", "stray_backslash"),
        (r"cut \u12", r"cut \u12", "stray_backslash"),
        ('f("x", 1)', 'f("x", 1)', "unescaped_quote"),
        ('operator""_h', 'operator""_h', "unescaped_quote"),
        ('"quoted"', '"quoted"', "unescaped_quote"),
        (r"half \ud800 pair", "half � pair", "lone_surrogate"),
    ],
)
def test_a_name_that_strict_parsers_refuse_is_mended(
    tmp_path: Path, broken: str, mended: str, kind: str
) -> None:
    found, faults, trace = read_data(tmp_path, text(BEFORE, event(broken), AFTER))
    assert found == ["before", mended, "after"]
    assert list(faults) == [kind]
    data = text(BEFORE, event(broken), AFTER)
    assert trace.damage.offsets[kind] == [data.index(b"{", data.index(b'"before"'))]


@pytest.mark.parametrize(
    ("word", "kind", "value"),
    [
        ("inf", "bare_word", None),
        ("-inf", "bare_word", None),
        ("Infinity", "bare_word", None),
        ("nan", "bare_word", None),
        ("-nan", "bare_word", None),
        ("NaN", "bare_word", None),
        ("N/A", "bare_word", None),
        ("", "empty_value", None),
        (".5", "bad_number", 0.5),
        ("007", "bad_number", 7),
    ],
)
def test_a_bare_word_where_a_number_should_be_becomes_null(
    tmp_path: Path, word: str, kind: str, value: object
) -> None:
    copy = event("copy", cat="gpu_memcpy", args=f'"memory bandwidth (GB/s)": {word}, "bytes": 4')
    path = write(tmp_path / "t.json", text(BEFORE, copy, AFTER))
    trace = Trace(path)
    texts = [t for block in trace.blocks(SlimEvent) for t in block.texts]
    assert json.loads(texts[1])["args"] == {"memory bandwidth (GB/s)": value, "bytes": 4}
    assert dict(trace.damage.counts) == {kind: 1}


def test_numbers_beyond_64_bits_are_passed_on_digit_by_digit(tmp_path: Path) -> None:
    big = '"Comms Id": 18446744073709551557000, "x": 1.2500000000000000001'
    path = write(tmp_path / "t.json", text(event("wide", tid=140737353914112123, args=big)))
    block = next(iter(Trace(path).blocks(SlimEvent)))
    assert big.encode() in block.texts[0]
    assert block.events[0].tid == 140737353914112123


def test_a_trailing_comma_and_an_empty_event_are_no_events(tmp_path: Path) -> None:
    data = text(BEFORE, AFTER).replace(TAIL.encode(), b",\n  {}\n  ,\n" + TAIL.encode())
    found, faults, _ = read_data(tmp_path, data)
    assert found == ["before", "after"]
    assert set(faults) <= {"trailing_comma"}


def test_a_comma_after_the_last_argument_is_removed(tmp_path: Path) -> None:
    found, faults, _ = read_data(tmp_path, text(event("x", args='"a": 1,'), AFTER))
    assert (found, faults) == (["x", "after"], {"trailing_comma": 1})


def test_a_missing_comma_between_events_costs_none(tmp_path: Path) -> None:
    found, faults, _ = read_data(tmp_path, text(BEFORE + "\n  " + event("x"), AFTER))
    assert (found, faults) == (["before", "x", "after"], {"missing_comma": 1})


def test_an_event_that_cannot_be_mended_costs_only_itself(tmp_path: Path) -> None:
    hopeless = event("x").replace('"pid": 42', '"pid" 42 }{')
    found, faults, _ = read_data(tmp_path, text(BEFORE, hopeless, AFTER))
    assert found == ["before", "after"]
    assert faults["lost_event"] >= 1


@pytest.mark.parametrize("separator", [",\n  ", ", ", ",", " ,\n\n\t"])
def test_any_layout_of_the_same_events_reads_the_same(tmp_path: Path, separator: str) -> None:
    events = [json.loads(event(f"op{i}", i * 1000)) for i in range(50)]
    joined = separator.join(json.dumps(e) for e in events)
    found, faults, _ = read_data(tmp_path, f'{{"traceEvents":[{joined}]}}'.encode())
    assert (found, faults) == ([f"op{i}" for i in range(50)], {})


@pytest.mark.parametrize("indent", [None, 1, 2, 4])
def test_reindented_traces_read_the_same(tmp_path: Path, indent: int | None) -> None:
    document = json.loads(text(*[event(f"op{i}", i * 1000) for i in range(50)]))
    found, faults, _ = read_data(tmp_path, json.dumps(document, indent=indent).encode())
    assert (found, faults) == ([f"op{i}" for i in range(50)], {})


def test_a_bare_array_is_a_trace_without_metadata(tmp_path: Path) -> None:
    found, faults, trace = read_data(tmp_path, f"[{BEFORE},\n{AFTER}]".encode())
    assert (found, faults, trace.is_array) == (["before", "after"], {}, True)
    assert trace.metadata.entries == {}


def test_the_header_may_stand_behind_the_events(tmp_path: Path) -> None:
    document = json.loads(text(BEFORE, AFTER))
    events = document.pop("traceEvents")
    data = json.dumps({"traceEvents": events, **document}, indent=2).encode()
    found, faults, trace = read_data(tmp_path, data)
    assert (found, faults) == (["before", "after"], {})
    assert (trace.metadata.rank, trace.metadata.base_time_ns) == (3, 1790857026000000000)
    assert read_metadata(trace.path).rank == 3


def test_quotes_in_the_tail_lose_no_event_and_no_metadata(tmp_path: Path) -> None:
    tail = '\n  ],\n  "INFO": ["{"event_id": 1}", "fine"],\n  "traceName": "a]b"\n}\n'
    found, faults, trace = read_data(tmp_path, text(BEFORE, AFTER, tail=tail))
    assert found == ["before", "after"]
    assert set(faults) == {"unescaped_quote"}
    assert trace.metadata.get("INFO") == ['{"event_id": 1}', "fine"]
    assert trace.metadata.get("traceName") == "a]b"


def test_a_broken_metadata_entry_costs_only_itself(tmp_path: Path) -> None:
    header = HEADER.replace('"schemaVersion": 1', '"schemaVersion": { what, "x": }}')
    found, faults, trace = read_data(tmp_path, text(BEFORE, header=header))
    assert found == ["before"]
    assert "lost_metadata" in faults
    assert trace.metadata.rank == 3


def test_metadata_of_no_value_is_null(tmp_path: Path) -> None:
    header = HEADER.replace('"schemaVersion": 1,', '"schemaVersion": 1, "mpi": ,')
    _, faults, trace = read_data(tmp_path, text(BEFORE, header=header))
    assert faults == {"empty_value": 1}
    assert trace.metadata.get("mpi") is None
    assert trace.metadata.rank == 3


def test_distributed_info_may_be_text_with_quoted_numbers(tmp_path: Path) -> None:
    inner = json.dumps(json.dumps({"rank": "5", "world_size": "8"}))
    header = HEADER.replace('{"backend": "nccl", "rank": 3, "world_size": 8}', inner)
    _, faults, trace = read_data(tmp_path, text(BEFORE, header=header))
    assert (faults, trace.metadata.rank, trace.metadata.world_size) == ({}, 5, 8)


def test_of_duplicate_keys_the_last_one_counts(tmp_path: Path) -> None:
    tail = TAIL.replace('"traceName"', '"distributedInfo": {"rank": 1},\n  "traceName"')
    doubled = event("x").replace('"ph": "X"', '"ph": "X", "name": "first"')
    found, faults, trace = read_data(tmp_path, text(doubled, tail=tail))
    assert (found, faults, trace.metadata.rank) == (["x"], {}, 1)


@pytest.mark.parametrize("events", ["", " ", "\n  "])
def test_a_trace_without_events_is_read_as_such(tmp_path: Path, events: str) -> None:
    data = f'{{"schemaVersion": 1, "traceEvents": [{events}], "traceName": "x"}}'.encode()
    found, faults, trace = read_data(tmp_path, data)
    assert (found, faults, trace.metadata.get("traceName")) == ([], {}, "x")
    assert read_table(trace.path).slices.is_empty()


def test_metadata_alone_is_a_trace_without_events(tmp_path: Path) -> None:
    found, faults, trace = read_data(
        tmp_path, b'{"schemaVersion": 1, "distributedInfo": {"rank": 2}}'
    )
    assert (found, faults, trace.metadata.rank) == ([], {}, 2)


def test_string_ids_old_categories_and_missing_fields_are_read(tmp_path: Path) -> None:
    span = event("PyTorch Profiler (0)", cat="Trace", pid="Spans", tid="PyTorch Profiler")
    old = event("volta_sgemm", cat="Kernel", pid=0, tid=7, args='"stream": 7')
    bare = '{"ph": "X", "name": "no duration", "ts": 5}'
    path = write(tmp_path / "t.json", text(span, old, bare))
    table = read_table(path)
    assert table.slices["category"].to_list() == ["Trace", "kernel", ""]
    assert table.slices["dur"].to_list() == [10_000, 10_000, 0]
    assert table.tracks == [("Spans", "PyTorch Profiler"), (0, 7), (None, None)]


def test_arguments_of_a_wrong_type_are_none_and_cost_nothing(tmp_path: Path) -> None:
    odd = event("k", cat="kernel", args='"correlation": "12", "stream": 7.0, "bytes": "x"')
    path = write(tmp_path / "t.json", text(odd, kernel("k", 5_000, 6_000, 9)))
    table = read_table(path)
    assert table.damage.counts == {}
    assert table.slices["correlation"].to_list() == [12, 9]
    assert table.slices["stream"].to_list() == [7, 7]
    assert table.slices["bytes"].to_list() == [None, None]


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("empty.json", b"", "empty"),
        ("list.json", b"[1, 2, 3]", "not of trace events"),
        ("chakra.json", b'{"schema": "1.0.2-chakra.0.0.4", "nodes": []}', "without traceEvents"),
        ("snapshot.pickle", b"\x80\x04\x95", "a pickle"),
        ("train.log", b"iteration 1/10 | loss", "neither"),
    ],
)
def test_other_files_are_refused_with_a_reason(
    tmp_path: Path, name: str, data: bytes, reason: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(NotATraceError, match=reason):
        read(tmp_path / name)


def test_strict_stops_at_the_first_fault(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", text(BEFORE, event(r"C:\Users")))
    with pytest.raises(StrictError, match="stray backslashes"):
        for _ in Trace(path, strict=True).blocks():
            pass


def test_a_launch_without_its_own_name_links_by_correlation(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", text(launch(1_000, 3_000, 5), kernel("k", 4_000, 5_000, 5)))
    assert read_table(path).slices["correlation"].to_list() == [5, 5]


def test_gpu_work_that_overruns_the_next_by_seconds_ends_there(tmp_path: Path) -> None:
    work = [
        kernel("too long", 0, 5_000_000_000, 1),
        kernel("next", 10_000, 15_000, 2),
        kernel("launched early", 14_000, 19_000, 3),
        kernel("alone on its stream", 0, 5_000_000_000, 4, stream=9),
    ]
    table = read_table(write(tmp_path / "t.json", text(*work)))
    assert table.slices["dur"].to_list() == [10_000, 5_000, 5_000, 5_000_000_000]
    assert table.odd_times.overrunning == 1


@pytest.mark.parametrize("number", ["1" * 5000, "1e999999999999", "-1e400", "1." + "1" * 5000])
def test_a_number_that_nothing_can_hold_ends_no_reading(tmp_path: Path, number: str) -> None:
    path = write(tmp_path / "t.json", text(BEFORE, event("x", number), AFTER))
    found = [e.name for block in Trace(path).blocks(SlimEvent) for e in block.events]
    assert found == ["before", "x", "after"]
    assert read_table(path).odd_times.far <= 1


def test_metadata_that_nothing_can_hold_is_unknown(tmp_path: Path) -> None:
    header = HEADER.replace('"schemaVersion": 1,', f'"schemaVersion": {"1" * 5000},')
    _, faults, trace = read_data(tmp_path, text(BEFORE, header=header))
    assert (faults, trace.metadata.get("schemaVersion"), trace.metadata.rank) == ({}, None, 3)


def test_an_event_that_closed_too_early_is_lost_with_its_offset_behind_other_letters(
    tmp_path: Path,
) -> None:
    early = '{"ph": "X", "name": "ü"}, "tid": 1, "ts": 1}'
    data = text(event("größer"), early, AFTER)
    found, faults, trace = read_data(tmp_path, data)
    assert found == ["größer", "after"]
    assert trace.damage.offsets["lost_event"] == [data.index(early.encode())]
    assert faults["lost_event"] == 1


def test_half_a_surrogate_behind_an_escaped_backslash_is_plain_text(tmp_path: Path) -> None:
    found, faults, _ = read_data(tmp_path, text(event(r"a\\ud800 \ud800 \\\ud83d\ude00")))
    assert (found, faults) == (["a\\ud800 � \\😀"], {"lone_surrogate": 1})
