# SPDX-License-Identifier: Apache-2.0
"""Several ranks in one file: apart, on one clock, and separable again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_builder import (
    HEADER,
    arrow_end,
    event,
    instant,
    kernel,
    launch,
    metadata,
    step,
    strict,
    text,
    values,
    write,
)

from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.files.sources import find_traces, ranked
from megatron.torch_trace.rewrite.merge.merge import MergeResult, merge
from megatron.torch_trace.rewrite.merge.split import split

BASE = 1790857026000000000


def header(rank: int, base: int | None = BASE) -> str:
    changed = HEADER.replace('"rank": 3', f'"rank": {rank}')
    line = f'  "baseTimeNanoseconds": {BASE},\n'
    return changed.replace(line, "" if base is None else f'  "baseTimeNanoseconds": {base},\n')


EVENTS = [
    step(1, 100_000, 190_000),
    launch(110_000, 115_000, 7),
    arrow_end("s", 7, 110_000),
    kernel("gemm", 120_000, 150_000, 7, external=7),
    arrow_end("f", 7, 120_000, pid=0, tid=7),
    event("PyTorch Profiler (0)", 90_000, 130_000, cat="Trace", pid="Spans", tid="Profiler"),
    event("buffer", 95_000, 1_000, cat="overhead", pid=-1, tid=0),
    event("A", 130_000, 10_000),
    event("B", 135_000, 10_000),
    metadata("process_name", 42, 0, name="python3"),
    metadata("process_labels", 0, 0, labels="GPU 0"),
    metadata("thread_name", 0, 7, name="stream 7"),
    metadata("thread_name", "Spans", "Profiler", name="all of it"),
    metadata("thread_name", 42, 0, name="thread 0"),
    metadata("process_name", 5, 0, name="python3"),
    instant("Record Window End", 200_000, scope="g", pid="", tid=""),
]


def merged(tmp_path: Path, *files: bytes, **options: Any) -> tuple[dict[str, Any], MergeResult]:
    folder = tmp_path / "in"
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(files):
        write(folder / f"rank-{number}.json", data)
    out = tmp_path / "merged.json"
    result = merge(ranked(find_traces([folder]).traces), out, force=True, **options)
    return strict(out.read_bytes()), result


def named_slices(document: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [e for e in document["traceEvents"] if e["name"] == name and e["ph"] != "M"]


def test_ranks_are_named_sorted_and_share_no_number(tmp_path: Path) -> None:
    document, _ = merged(tmp_path, text(*EVENTS, header=header(0)), text(*EVENTS, header=header(1)))
    processes = {
        e["pid"]: e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"
    }
    assert sorted(processes.values()) == [
        "rank 0 CPU", "rank 0 GPU 0", "rank 0 Spans", "rank 0 profiler overhead", "rank 0 trace",
        "rank 1 CPU", "rank 1 GPU 0", "rank 1 Spans", "rank 1 profiler overhead", "rank 1 trace",
    ]  # fmt: skip
    order = {
        processes[e["pid"]]: e["args"]["sort_index"]
        for e in document["traceEvents"]
        if e["name"] == "process_sort_index"
    }
    assert order["rank 0 CPU"] < order["rank 0 GPU 0"] < order["rank 1 CPU"] < order["rank 0 Spans"]
    gemms = named_slices(document, "gemm")
    assert gemms[0]["pid"] != gemms[1]["pid"]
    assert gemms[0]["args"]["correlation"] != gemms[1]["args"]["correlation"]
    starts = [e for e in document["traceEvents"] if e["ph"] == "s"]
    finishes = [e for e in document["traceEvents"] if e["ph"] == "f"]
    assert [e["id"] for e in starts] == [e["id"] for e in finishes] == [107, 117]
    assert gemms[1]["args"]["correlation"] == 117


def test_a_process_is_called_what_its_label_says(tmp_path: Path) -> None:
    events = [
        metadata("process_name", 42, 0, name="python3"),
        metadata("process_labels", 42, 0, labels="CPU"),
        event("mark", 5_000, 1_000, cat="gpu_user_annotation", pid=6, tid=7),
        metadata("process_labels", 6, 0, labels="GPU 6"),
        metadata("process_labels", 9, 0, labels="GPU 9"),
        event("x"),
    ]
    document, _ = merged(tmp_path, text(*events, header=header(0)), text(*events, header=header(1)))
    found = {
        kind: sorted(
            value
            for e in document["traceEvents"]
            if e["name"] == f"process_{kind}"
            for value in e["args"].values()
        )
        for kind in ("name", "labels")
    }
    assert found == {
        "name": ["rank 0 CPU", "rank 0 GPU 6", "rank 1 CPU", "rank 1 GPU 6"],
        "labels": ["CPU", "CPU", "GPU 6", "GPU 6"],
    }


def test_ids_that_are_no_numbers_a_viewer_holds_stay_apart(tmp_path: Path) -> None:
    ids = (str(1 << 60), '"0x1f"', "12")
    events = [arrow_end("s", 1, 5_000).replace('"id": 1', f'"id": {one}') for one in ids]
    document, _ = merged(tmp_path, text(*events, header=header(0)), text(*events, header=header(1)))
    assert [e["id"] for e in document["traceEvents"] if e["ph"] == "s"] == [
        f"0:n:{1 << 60}", "0:s:0x1f", 1012, f"1:n:{1 << 60}", "1:s:0x1f", 1112,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after"), [('"pid": 7, ', '"pid" : '), ('"id": 3, ', '"id" : ')]
)
def test_a_key_that_comes_twice_in_one_event_and_never_in_another_mixes_nothing_up(
    tmp_path: Path, before: str, after: str
) -> None:
    key = after.split()[0]
    arrows = [arrow_end("s", name, 110_000) for name in (7, 8)]
    twice, never = arrows[0].replace("{", "{" + before, 1), arrows[1].replace(f"{key}: ", after)
    assert never != arrows[1]
    damaged = text(*EVENTS, twice, never, header=header(0))
    healthy = text(*EVENTS, *arrows, header=header(0))
    other = text(*EVENTS, header=header(1))
    found, expected = (
        sorted(
            (one["id"], one["pid"], one["tid"], one["ts"])
            for one in merged(tmp_path / name, mine, other)[0]["traceEvents"]
            if one["ph"] == "s"
        )
        for name, mine in (("damaged", damaged), ("healthy", healthy))
    )
    assert len(found) == 4
    assert found == expected


def test_coordinates_are_in_the_name(tmp_path: Path) -> None:
    groups = [
        {"pg_desc": "TENSOR_MODEL_PARALLEL_GROUP", "ranks": [0, 1]},
        {"pg_desc": "DATA_PARALLEL_GROUP", "ranks": [1, 3]},
    ]
    inner = json.dumps({"rank": 1, "world_size": 4, "pg_config": groups})
    one = header(1).replace('{"backend": "nccl", "rank": 1, "world_size": 8}', inner)
    document, _ = merged(tmp_path, text(*EVENTS, header=header(0)), text(*EVENTS, header=one))
    assert "rank 1 (tp1 pp0 dp0) GPU 0" in json.dumps(document)


@pytest.mark.parametrize(
    ("bases", "times", "expected_base", "expected"),
    [
        ((BASE, BASE), ("5.000", "5.000"), BASE, (5_000, 5_000)),
        ((BASE, BASE + 1_500_000_001), ("5.000", "5.000"), BASE, (5_000, 1_500_005_001)),
        ((BASE, None), ("5.000", f"{BASE // 1000 + 7}.001"), BASE, (5_000, 7_001)),
        ((None, None), ("1723203468009469.317", "1723203468009470.318"), 0,
         (1723203468009469317, 1723203468009470318)),
    ],
)  # fmt: skip
def test_time_bases_are_resolved_to_the_nanosecond(
    tmp_path: Path,
    bases: tuple[int | None, int | None],
    times: tuple[str, str],
    expected_base: int,
    expected: tuple[int, int],
) -> None:
    files = [
        text(event("x", time), header=header(rank, base))
        for rank, (base, time) in enumerate(zip(bases, times, strict=True))
    ]
    merged(tmp_path, *files)
    document = json.loads((tmp_path / "merged.json").read_bytes(), parse_float=str)
    found = [int(e["ts"].replace(".", "")) for e in named_slices(document, "x")]
    assert tuple(found) == expected
    assert document.get("baseTimeNanoseconds", 0) == expected_base


def test_a_rank_that_lost_its_base_is_taken_to_have_the_others(tmp_path: Path) -> None:
    files = [text(event("x", 5_000), header=header(r, b)) for r, b in ((0, BASE), (1, None))]
    document, result = merged(tmp_path, *files)
    assert [e["ts"] for e in named_slices(document, "x")] == [5.0, 5.0]
    assert len(result.notes) == 1
    assert "no baseTimeNanoseconds" in result.notes[0]


def collective(ts: int, dur: int) -> str:
    args = {
        "stream": 9, "Collective name": "allreduce", "Process Group Name": "1",
        "Process Group Ranks": "[0, 1]",
    }  # fmt: skip
    return event("ncclDevKernel_AllReduce", ts, dur, cat="kernel", pid=0, tid=9, args=args)


def test_alignment_lets_collectives_end_together(tmp_path: Path) -> None:
    one = [collective(100_000 * i, 50_000) for i in range(1, 4)]
    late = [collective(100_000 * i + 1_030_000, 20_000) for i in range(1, 4)]
    files = [text(*one, header=header(0)), text(*late, header=header(1))]
    document, result = merged(tmp_path, *files, align=True)
    assert result.offsets_ns == {0: 0, 1: -1_000_000}
    ends = [e["ts"] + e["dur"] for e in named_slices(document, "ncclDevKernel_AllReduce")]
    assert ends == [150, 250, 350, 150, 250, 350]


def test_two_files_of_one_rank_are_both_named(tmp_path: Path) -> None:
    files = [text(*EVENTS, header=header(0)), text(*EVENTS, header=header(0))]
    with pytest.raises(UsageError, match=r"rank-1\.json and .*rank-0\.json: both are rank 0"):
        merged(tmp_path, *files)


def test_an_unknown_rank_is_asked_for(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        write(tmp_path / name, b'{"traceEvents": []}')
    paths = find_traces([tmp_path]).traces
    with pytest.raises(UsageError, match=r"a\.json: neither .* has the rank; give it with --ranks"):
        ranked(paths)
    assert [r.rank for r in ranked(paths, [4, 2])] == [2, 4]


def test_a_merged_file_is_never_taken_for_a_rank(tmp_path: Path) -> None:
    merged(tmp_path, text(*EVENTS, header=header(0)), text(*EVENTS, header=header(1)))
    with pytest.raises(UsageError, match="holds several ranks already"):
        ranked([tmp_path / "merged.json"])


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    chosen=st.lists(
        st.lists(st.sampled_from(EVENTS), unique=True, max_size=16), min_size=2, max_size=4
    ),
    late=st.integers(0, 10**12),
)
def test_merge_then_split_is_the_identity(
    tmp_path: Path, chosen: list[list[str]], late: int
) -> None:
    files = [
        text(*events, header=header(rank, BASE + rank * late)) for rank, events in enumerate(chosen)
    ]
    for old in (tmp_path / "in").glob("*") if (tmp_path / "in").exists() else ():
        old.unlink()
    merged(tmp_path, *files)
    (tmp_path / "out").mkdir(exist_ok=True)
    written = split(tmp_path / "merged.json", tmp_path / "out", force=True)
    assert sorted(written) == list(range(len(files)))
    for rank, data in enumerate(files):
        again = written[rank].read_bytes()
        assert values(again) == values(data)
        first, second = strict(again), strict(data)
        first.pop("traceEvents")
        second.pop("traceEvents")
        assert first == second
