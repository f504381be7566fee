# SPDX-License-Identifier: Apache-2.0
"""Every recorded trace goes through every command, and comes out whole."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from trace_builder import strict
from trace_processor import ask, needs_perfetto

from megatron.torch_trace.columns.slice_table import read_table
from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.files.sources import find_traces, ranked
from megatron.torch_trace.inspect.survey import survey
from megatron.torch_trace.rewrite.decompression import decompress
from megatron.torch_trace.rewrite.merge.merge import merge
from megatron.torch_trace.rewrite.selection import Selection
from megatron.torch_trace.rewrite.slim.slim import slim

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
KEPT = [
    path
    for path in sorted((ROOT / "tests" / "data").rglob("*.json.gz"))
    if path.parent.name != "faults"
]
SHARED = ROOT.parent / "shared" / "data"
# The large one is for benchmarks; ranks of the same run are much alike.
OTHERS = [
    path
    for path in sorted(SHARED.rglob("*.json.gz"))
    if "large" not in str(path) and ("rank-0" in path.name or "public" in str(path))
] or [
    pytest.param(
        SHARED,
        marks=pytest.mark.skip(reason="the repository does not hold others' recordings"),
    )
]

ERRORS = "select name, sum(value) from stats where value > 0 and severity <> 'info' group by 1"


def _alike_is_slow(path: Path) -> Any:
    """Ranks of one run are much alike: the first one stands for them where time counts."""
    first = min(other for other in KEPT if other.parent == path.parent)
    return path if path == first else pytest.param(path, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "path",
    [*map(_alike_is_slow, KEPT), *OTHERS],
    ids=lambda p: f"{p.parent.name}-{p.name[:12]}",
)
def test_a_recorded_trace_survives_every_command(path: Path, tmp_path: Path) -> None:
    raw = gzip.decompress(path.read_bytes())
    document = json.loads(raw)
    events = document["traceEvents"]
    decompress(path, tmp_path / "plain.json")
    assert (tmp_path / "plain.json").read_bytes() == raw
    decompress(path, tmp_path / "repaired.json", repair=True)
    assert strict((tmp_path / "repaired.json").read_bytes()) == {
        **document, "displayTimeUnit": "ms",
    }  # fmt: skip

    found = survey(path, crossing=True)
    assert not found.damage
    assert found.events == len(events)
    assert not found.odd

    slices = [e for e in events if e["ph"] == "X"]
    table = read_table(path, without=())
    assert len(table.slices) == len(slices)
    assert not table.odd_times
    ns = [round(float(e["dur"]) * 1000) for e in slices]
    assert table.slices["dur"].to_list() == ns
    assert [table.names[code] for code in table.slices["name"]] == [e["name"] for e in slices]

    result = slim(path, tmp_path / "all.json", Selection(separate_tracks=True))
    again = strict((tmp_path / "all.json").read_bytes())
    assert Counter(e["name"] for e in again["traceEvents"] if e["ph"] == "X") == Counter(
        e["name"] for e in slices
    )
    assert result.damage.counts == {}
    after = survey(tmp_path / "all.json", crossing=True)
    assert (after.crossing, after.flows_with_one_end) == (0, 0)
    slim(path, tmp_path / "gpu.json", Selection().with_preset("overlap"))
    assert strict((tmp_path / "gpu.json").read_bytes())["traceEvents"]


def folders_of_ranks() -> list[Any]:
    """Folders with more than one rank; of the larger collection all but the large one."""
    found = sorted({path.parent for path in (*KEPT, *SHARED.rglob("*.json.gz"))})
    return [folder for folder in found if len(list(folder.glob("rank-*.json.gz"))) > 1]


@pytest.mark.parametrize("folder", folders_of_ranks(), ids=lambda p: f"{p.parent.name}-{p.name}")
@pytest.mark.slow
def test_the_ranks_of_a_folder_merge_into_a_file_that_every_command_knows(
    folder: Path, tmp_path: Path
) -> None:
    traces = ranked(find_traces([folder]).traces)
    # The first and the last: two ranks show all that four do, in half of the time.
    traces = [traces[0], traces[-1]]
    result = merge(traces, tmp_path / "all.json.gz", align=True)
    assert not result.damage
    assert None not in result.offsets_ns.values()
    found = survey(tmp_path / "all.json.gz", crossing=True)
    assert (found.damage.counts, found.crossing) == ({}, 0)
    assert found.raw_bytes == result.written_bytes
    merged = found.metadata.merged
    assert merged is not None
    assert [entry["rank"] for entry in merged["ranks"]] == [trace.rank for trace in traces]
    own = [survey(trace.path) for trace in traces]
    assert found.flows_with_one_end == sum(one.flows_with_one_end for one in own)
    for kind in ("kernel", "cpu_op", "ac2g", "gpu_user_annotation"):
        before = sum(one.account.get(kind, [0, 0])[0] for one in own)
        assert found.account.get(kind, [0, 0])[0] == before
    with pytest.raises(UsageError, match="holds several ranks already"):
        ranked([tmp_path / "all.json.gz"])
    slim(tmp_path / "all.json.gz", tmp_path / "one.json", Selection(ranks=frozenset({0})))
    one = survey(tmp_path / "one.json")
    assert one.gpu_events == own[0].gpu_events
    assert one.gpu_events_without_launch == own[0].gpu_events_without_launch


@needs_perfetto
@pytest.mark.parametrize("path", KEPT[-2:], ids=lambda p: p.parent.name)
def test_perfetto_loses_nothing_of_a_slimmed_trace(path: Path, tmp_path: Path) -> None:
    slim(path, tmp_path / "all.json", Selection(separate_tracks=True))
    events = json.loads((tmp_path / "all.json").read_bytes())["traceEvents"]
    total = sum(round(e["dur"] * 1000) for e in events if e["ph"] == "X")
    instants = sum(e["ph"] == "i" for e in events)
    slices = sum(e["ph"] == "X" for e in events)
    arrows = sum(e["ph"] == "s" for e in events)
    answers = ask(
        tmp_path / "all.json",
        "select count(*), sum(dur) from slice",
        "select count(*) from flow",
        ERRORS,
    )
    assert answers == [[[slices + instants, total]], [[arrows]], []]


@needs_perfetto
@pytest.mark.slow
def test_perfetto_loses_nothing_of_a_merged_trace(tmp_path: Path) -> None:
    # The first rank of the first stage and the last one of the last: half of the work of all four.
    traces = ranked(find_traces([ROOT / "tests" / "data" / "tp2pp2"]).traces)[::3]
    merge(traces, tmp_path / "all.json", align=True)
    events = json.loads((tmp_path / "all.json").read_bytes())["traceEvents"]
    total = sum(round(e["dur"] * 1000) for e in events if e["ph"] == "X")
    answers = ask(
        tmp_path / "all.json",
        "select sum(dur) from slice",
        "select name from process where name glob 'rank * CPU' order by 1",
        ERRORS,
    )
    assert answers == [
        [[total]],
        [["rank 0 (tp0 pp0 dp0) CPU"], ["rank 3 (tp1 pp1 dp0) CPU"]],
        [],
    ]
