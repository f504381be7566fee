# SPDX-License-Identifier: Apache-2.0
"""What slim keeps, leaves out, and never breaks."""

from __future__ import annotations

import json
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
    names,
    step,
    strict,
    text,
    write,
)

from megatron.torch_trace.errors import StrictError, TorchTraceError, UsageError
from megatron.torch_trace.rewrite.selection import Selection
from megatron.torch_trace.rewrite.slim.slim import SlimResult, slim

TWO_STEPS = [
    step(5, 100_000, 200_000),
    step(6, 200_000, 300_000),
    event("forward", 110_000, 20_000, args='"Input Dims": [[2, 3]], "Ev Idx": 1'),
    event("python", 105_000, 50_000, cat="python_function"),
    launch(190_000, 195_000, 1),
    arrow_end("s", 1, 190_000),
    kernel("late of step 5", 250_000, 260_000, 1, external=1),
    arrow_end("f", 1, 250_000, pid=0, tid=7),
    launch(210_000, 215_000, 2),
    arrow_end("s", 2, 210_000),
    kernel("of step 6", 270_000, 300_000, 2, external=2),
    arrow_end("f", 2, 270_000, pid=0, tid=7),
    kernel("launched before", 120_000, 121_000, 99, external=99),
    arrow_end("f", 99, 120_000, pid=0, tid=7),
    arrow_end("s", 50, 110_000),
    metadata("thread_name", 0, 7, name="stream 7"),
    metadata("thread_sort_index", 0, 7, sort_index=7),
]


def slimmed(tmp_path: Path, data: bytes, selection: Selection, **options: Any) -> bytes:
    path = write(tmp_path / "in.json", data)
    slim(path, tmp_path / "out.json", selection, force=True, **options)
    return (tmp_path / "out.json").read_bytes()


def kept(tmp_path: Path, selection: Selection) -> list[str]:
    return names(slimmed(tmp_path, text(*TWO_STEPS), selection))


def arrows(data: bytes) -> list[tuple[str, int]]:
    events = strict(data)["traceEvents"]
    return sorted((e["ph"], e["id"]) for e in events if e["ph"] in "sf")


def test_with_nothing_asked_only_arrows_with_one_end_go(tmp_path: Path) -> None:
    data = slimmed(tmp_path, text(*TWO_STEPS), Selection())
    assert arrows(data) == [("f", 1), ("f", 2), ("s", 1), ("s", 2)]
    assert len(strict(data)["traceEvents"]) == len(TWO_STEPS) - 2


def test_a_step_has_the_kernels_that_it_launched(tmp_path: Path) -> None:
    data = slimmed(tmp_path, text(*TWO_STEPS), Selection(steps=frozenset({5})))
    assert sorted(n for n in names(data) if n != "ac2g") == [
        "ProfilerStep#5", "cudaLaunchKernel", "forward", "late of step 5", "launched before",
        "python",
    ]  # fmt: skip
    assert arrows(data) == [("f", 1), ("s", 1)]


def test_a_step_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no ProfilerStep#9; the trace has 5, 6\."):
        kept(tmp_path, Selection(steps=frozenset({9})))


def test_a_time_range_goes_by_the_clock_from_the_first_event(tmp_path: Path) -> None:
    selection = Selection(start_ns=150_000, end_ns=165_000)
    assert sorted(kept(tmp_path, selection)) == ["ProfilerStep#6", "late of step 5"]


def test_categories_may_be_asked_for_by_their_present_names(tmp_path: Path) -> None:
    assert kept(tmp_path, Selection(categories=frozenset({"python_function"}))) == ["python"]
    data = text(event("k", cat="Kernel", args='"stream": 7'), event("op", cat="Operator"))
    assert names(slimmed(tmp_path, data, Selection(categories=frozenset({"kernel"})))) == ["k"]


def test_the_shortest_slices_go_but_annotations_stay(tmp_path: Path) -> None:
    assert kept(tmp_path, Selection(min_dur_ns=40_000)) == [
        "ProfilerStep#5", "ProfilerStep#6", "python",
    ]  # fmt: skip


def test_streams_choose_gpu_work_only(tmp_path: Path) -> None:
    other = kernel("of another stream", 110_000, 111_000, 98, stream=20)
    data = text(*TWO_STEPS, other)
    found = names(slimmed(tmp_path, data, Selection(streams=frozenset({20}))))
    assert "forward" in found
    assert "of another stream" in found
    assert "of step 6" not in found


@pytest.mark.parametrize(
    ("drop", "gone"), [("python", {"python"}), ("cpu", {"forward"}), ("flows", {"ac2g"})]
)
def test_drop_leaves_out_what_it_names(tmp_path: Path, drop: str, gone: set[str]) -> None:
    everything = set(kept(tmp_path, Selection()))
    assert everything - set(kept(tmp_path, Selection(drop=frozenset({drop})))) == gone


def test_drop_shapes_and_args_keep_what_links_events(tmp_path: Path) -> None:
    data = slimmed(tmp_path, text(*TWO_STEPS), Selection(drop=frozenset({"shapes"})))
    forward = next(e for e in strict(data)["traceEvents"] if e["name"] == "forward")
    assert forward["args"] == {"Ev Idx": 1}
    data = slimmed(tmp_path, text(*TWO_STEPS), Selection(drop=frozenset({"args"})))
    late = next(e for e in strict(data)["traceEvents"] if e["name"] == "late of step 5")
    assert late["args"] == {"External id": 1, "device": 0, "stream": 7, "correlation": 1}
    assert '"name": "stream 7"' in data.decode()


def test_metadata_stays_and_says_what_was_left_out(tmp_path: Path) -> None:
    whole = strict(text(*TWO_STEPS))
    data = strict(slimmed(tmp_path, text(*TWO_STEPS), Selection(drop=frozenset({"python"}))))
    assert data.pop("torch_profile") == {"slim": {"drop": ["python"]}}
    for document in (whole, data):
        document.pop("traceEvents")
    assert data == whole


def test_display_time_unit_is_always_ms(tmp_path: Path) -> None:
    data = text(event()).replace(b'"displayTimeUnit": "ms"', b'"displayTimeUnit": "ns"')
    assert strict(slimmed(tmp_path, data, Selection()))["displayTimeUnit"] == "ms"


def test_numbers_are_passed_on_digit_by_digit(tmp_path: Path) -> None:
    digits = '"Comms Id": 18446744073709551557, "y": 1.10, "z": 1E+2'
    data = text(event("x", "1723203468009469.317", 10, args=digits))
    out = slimmed(tmp_path, data, Selection(drop=frozenset({"shapes"})))
    assert digits.encode() in out
    assert b'"ts": 1723203468009469.317, "dur": 0.010' in out


def test_an_output_is_never_replaced_without_force(tmp_path: Path) -> None:
    path = write(tmp_path / "in.json", text(event()))
    (tmp_path / "out.json").write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        slim(path, tmp_path / "out.json")
    assert (tmp_path / "out.json").read_text() == "mine"


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    path = write(tmp_path / "in.json", text(event(r"C:\Users")))
    with pytest.raises(StrictError):
        slim(path, tmp_path / "out.json", strict=True)
    assert [p.name for p in tmp_path.iterdir()] == ["in.json"]


@pytest.mark.parametrize("name", ["out.json", "out.json.gz", "out.json.zst"])
def test_the_output_is_compressed_as_its_name_says(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "in.json", text(*TWO_STEPS))
    slim(path, tmp_path / name)
    slim(tmp_path / name, tmp_path / "again.json")
    slim(path, tmp_path / "plain.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "plain.json").read_bytes()


def test_a_disk_without_room_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("usage", (), {"free": 1_000_000})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    path = write(tmp_path / "in.json", text(event()))
    with pytest.raises(TorchTraceError, match="write it to another disk"):
        slim(path, tmp_path / "out.json")


CROSSING = [
    event("A", 3_000, 3_776),
    event("B", 5_000, 2_000),
    event("C", 5_500, 3_000),
    event("note", 1_000, 20_000, cat="user_annotation"),
    event("python", 4_000, 9_000, tid=0),
    event("buffer request", 2_000, 1_000, cat="overhead", pid=-1, tid=0),
    event("PyTorch Profiler (0)", 500, 30_000, cat="Trace", pid="Spans", tid="Profiler"),
    metadata("thread_name", 42, LOOP, name="thread 42"),
]


def test_for_perfetto_nothing_crosses_and_every_id_fits(tmp_path: Path) -> None:
    data = strict(slimmed(tmp_path, text(*CROSSING), Selection(separate_tracks=True)))
    slices = [e for e in data["traceEvents"] if e["ph"] == "X"]
    assert sorted(e["name"] for e in slices) == sorted(json.loads(e)["name"] for e in CROSSING[:7])
    where = {e["name"]: (e["pid"], e["tid"]) for e in slices}
    assert where["A"] == (42, LOOP)
    assert len({where[name] for name in ("A", "B", "C", "note", "python")}) == 5
    assert all(0 <= e["pid"] < 2**32 and 0 < e["tid"] < 2**32 for e in slices)
    labels = {
        (e["pid"], e["tid"]): e["args"]["name"]
        for e in data["traceEvents"]
        if e["name"] == "thread_name"
    }
    assert labels[where["note"]] == "thread 42 annotations"
    assert labels[where["B"]] == "thread 42 crossing 1"
    assert labels[where["C"]] == "thread 42 crossing 2"


def test_an_unfinished_slice_is_mended_for_perfetto(tmp_path: Path) -> None:
    data = strict(slimmed(tmp_path, text(event("x", dur="-1")), Selection(separate_tracks=True)))
    assert data["traceEvents"][0]["dur"] == 0


def test_a_kernel_that_overruns_the_next_by_seconds_is_cut_there(tmp_path: Path) -> None:
    data = text(
        kernel("A", 0, 5_000_000_000, 1),
        event("B", 10_000, "2000000.5", cat="kernel", pid=0, tid=7),
        kernel("C", 15_000, 999_015_000, 3),
        kernel("D", 20_000, 25_000, 4),
        kernel("on another stream", 0, 5_000_000_000, 5, stream=8),
        event("host", 0, 5_000_000_000),
        event("inside", 10_000, 5_000),
    )
    result, document = perfetto_slim(tmp_path, data)
    slices = {e["name"]: e for e in document["traceEvents"] if e["ph"] == "X"}
    assert {name: e["dur"] for name, e in slices.items()} == {
        "A": 10.0, "B": 5.0, "C": 999000.0, "D": 5.0,
        "on another stream": 5000000.0, "host": 5000000.0, "inside": 5.0,
    }  # fmt: skip
    written = json.loads(kernel("A", 0, 5_000_000_000, 1))["args"]
    assert slices["A"]["args"] == {**written, "dur before clipping": 5000000.0}
    assert slices["B"]["args"] == {"dur before clipping": 2000000.5}
    assert slices["C"]["args"].keys() == written.keys()
    assert result.clipped == 2


def perfetto_slim(tmp_path: Path, data: bytes) -> tuple[SlimResult, dict[str, Any]]:
    path, out = write(tmp_path / "in.json", data), tmp_path / "out.json"
    result = slim(path, out, Selection(separate_tracks=True))
    return result, strict(out.read_bytes())


def test_names_are_cut_and_stay_distinct(tmp_path: Path) -> None:
    long = ["void cutlass::Kernel<" + "x" * 20_000 + end for end in ("A>", "B>")]
    data = text(*map(event, [long[0], long[1], long[0], "short", "n" * 32]))
    once = slimmed(tmp_path, data, Selection(max_name=32))
    cut = names(once)
    assert cut[3:] == ["short", "n" * 32]
    assert [len(name) for name in cut] == [32, 32, 32, 5, 32]
    assert all(name.startswith("void cutlass::Kernel<#") for name in cut[:3])
    assert cut[0] == cut[2] != cut[1]
    assert strict(once)["torch_profile"] == {"slim": {"max_name": 32}}
    with pytest.raises(UsageError, match="--max-name 9: must be at least 24"):
        Selection(max_name=9)


SELECTIONS = [
    Selection(),
    Selection(steps=frozenset({5})),
    Selection(min_dur_ns=20_000),
    Selection(drop=frozenset({"python", "shapes"})),
    Selection(start_ns=50_000, end_ns=160_000),
    Selection(steps=frozenset({6}), categories=frozenset({"kernel"})),
    Selection(separate_tracks=True),
    Selection(max_name=24),
    Selection().with_preset("overlap"),
]


def sorted_events(data: bytes) -> list[str]:
    return sorted(json.dumps(e, sort_keys=True) for e in strict(data)["traceEvents"])


@pytest.mark.parametrize("selection", SELECTIONS, ids=lambda s: str(s.record()))
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(chosen=st.lists(st.sampled_from(TWO_STEPS[2:] + CROSSING), max_size=30, unique=True))
def test_slim_of_slim_is_slim(tmp_path: Path, selection: Selection, chosen: list[str]) -> None:
    once = slimmed(tmp_path, text(*TWO_STEPS[:2], *chosen), selection)
    twice = slimmed(tmp_path, once, selection)
    assert sorted_events(once) == sorted_events(twice)
    assert {e["ph"] for e in strict(once)["traceEvents"]} <= {"X", "s", "f", "M"}
    ends = arrows(once)
    assert {i for ph, i in ends if ph == "s"} == {i for ph, i in ends if ph == "f"}
