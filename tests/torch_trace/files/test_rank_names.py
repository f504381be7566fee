# SPDX-License-Identifier: Apache-2.0
"""Ranks that only files' names tell: every command takes the same ones, and none from an order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import output
from timeline_reader import read_timeline
from trace_builder import HEADER, event, kernel, launch, step, text, write

from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.files.sources import find_traces, rank_in_name, ranked

SILENT = HEADER.replace('"distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8},', "")
WORK = text(
    step(1, 100_000, 1_000_000), launch(110_000, 115_000, 7),
    kernel("gemm", 120_000, 150_000, 7), event("aten::mm"), header=SILENT,
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank-07.pt.trace.json.gz", 7),
        ("rank_10.json", 10),
        ("trace_rank10.json.gz", 10),
        ("rank[10].json", 10),
        ("global_rank_12_rank_4.json", 12),
        ("worker7_step_12.1694128201553.pt.trace.json.gz", 7),
        ("r10-2024-05-01.json", 10),
        ("step5-r3.trace.json", 3),
        ("1758-TP-10.trace.json.gz", 10),
        ("1758-TP-0.trace.json.gz", 0),
        ("1758-TP-3-DP-0-PP-0.trace.json.gz", 3),
        ("1758-TP-3-DP-1.trace.json.gz", None),
        ("dp0_pp0_tp0_dcp0_ep0_rank5.176.pt.trace.json.gz", 5),
        ("node17_4711.1694128201545.pt.trace.json", None),
        ("worker-3_4711.1694128201545.pt.trace.json", None),
        ("rank_3_4711.1694128201545.pt.trace.json", 3),
        ("local_rank_2.json", None),
        ("gpt2-10.json", None),
        ("frank7.json", None),
        ("trace.json", None),
    ],
)
def test_a_name_tells_a_rank_or_none(name: str, rank: int | None) -> None:
    assert rank_in_name(name) == rank


def test_every_command_takes_the_ranks_of_names(tmp_path: Path) -> None:
    names = ["1758-TP-2.trace.json", "1758-TP-10.trace.json", "1758-TP-9.trace.json"]
    files = [str(write(tmp_path / name, WORK)) for name in names]
    found = ranked(find_traces([tmp_path]).traces)
    assert [one.rank for one in found] == [2, 9, 10]
    document = json.loads(output("analyze", tmp_path, "--json"))
    assert [(one["rank"], one["file"]) for one in document["ranks"]] == [
        (2, files[0]), (9, files[2]), (10, files[1]),
    ]  # fmt: skip
    assert json.loads(output("info", files[1], "--json"))["traces"][0]["rank"] == 10
    shown = output("convert", tmp_path, "-o", tmp_path.parent / "t.pftrace")
    assert [line.split()[0] for line in shown.splitlines() if line.endswith("unknown")] == [
        "2", "9", "10",
    ]  # fmt: skip


def test_where_nothing_tells_a_rank_it_is_unknown_and_not_the_order_of_files(
    tmp_path: Path,
) -> None:
    names = ["nodea_1234.1694128201545.pt.trace.json", "nodea_1235.1694128201546.pt.trace.json"]
    files = [str(write(tmp_path / name, WORK)) for name in names]
    document = json.loads(output("analyze", tmp_path, "--json"))
    assert [(one["rank"], one["file"]) for one in document["ranks"]] == [
        (None, files[0]), (None, files[1]),
    ]  # fmt: skip
    assert "rank unknown; " in output("analyze", files[0])
    said = output("analyze", tmp_path).replace("\n    ", " ")
    assert said.count("Rank unknown: neither") == 2
    assert json.loads(output("info", files[0], "--json"))["traces"][0]["rank"] is None
    with pytest.raises(UsageError, match="neither the trace nor its file name has the rank"):
        ranked(find_traces([tmp_path]).traces)
    output("convert", tmp_path, "-o", tmp_path.parent / "u.pftrace")
    rows = map(str, read_timeline(tmp_path.parent / "u.pftrace").rows.values())
    processes = "\n".join(rows)
    for name in names:
        assert f"rank unknown: {name}" in processes
