# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
import subprocess
from pathlib import Path

import polars as pl
import pytest
from command_line import MAIN
from trace_builder import collective_args, kernel, launch, op, step, write_rank

from megatron.torch_trace import analyze
from megatron.torch_trace.parquet import export
from megatron.torch_trace.parquet.schemas import SCHEMAS

ROOT = Path(__file__).parents[2]
SLOW = ROOT / "tests" / "data" / "analysis" / "dp4-rank2-slow"
GROUP = collective_args("allreduce", "dp", nelems=8, dtype="Float")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    export(SLOW, folder / "tables", jobs=1)
    return folder / "tables"


def rank(folder: Path, number: int) -> Path:
    late = 10_000 * number
    return write_rank(
        folder / f"rank-{number}.json",
        step(7, 100_000, 180_000), op("aten::mm", 101_000, 106_000),
        launch(102_000, 103_000, 1), launch(110_000, 111_000, 2),
        kernel("void cutlass::gemm<4>(int)", 110_000, 125_000, 1),
        kernel("ncclDevKernel_AllReduce", 120_000 + late, 150_000, 2, stream=27, Seq=5, **GROUP),
        rank=number, baseTimeNanoseconds=1_790_857_026_000_000_000,
    )  # fmt: skip


def test_the_tables_of_two_ranks(tmp_path: Path) -> None:
    result = export([rank(tmp_path, 1), rank(tmp_path, 0)], tmp_path / "tables", jobs=1)
    assert result.rows == {
        "events": 12, "kernels": 4, "launches": 4, "spans": 0, "collectives": 2, "steps": 2,
        "modules": 0, "findings": 2, "ranks": 2,
    }  # fmt: skip
    events, kernels, collectives, steps, ranks = (
        pl.read_parquet(tmp_path / "tables" / f"{table}.parquet")
        for table in ("events", "kernels", "collectives", "steps", "ranks")
    )
    assert events.row(1, named=True) == {
        **dict.fromkeys(SCHEMAS["events"]),
        "rank": 0, "category": "cpu_op", "name": "aten::mm", "process": "42", "thread": "42",
        "start_ns": 101_000, "duration_ns": 5_000,
    }  # fmt: skip
    assert kernels.row(0, named=True) == {
        "rank": 0, "name": "void cutlass::gemm<4>(int)", "short_name": "gemm", "kind": "kernel",
        "class": "compute", "start_ns": 110_000, "duration_ns": 15_000, "device": 0, "stream": 7,
        "correlation": 1, "launch_ns": 102_000, "step": 7, "exposed_ns": None, "bytes": 0,
        "dimension": None, "collective": None,
    }  # fmt: skip
    assert kernels.row(1, named=True)["exposed_ns"] == 25_000
    one = {
        "call": 0, "dimension": "dp", "group": "DATA_PARALLEL_GROUP_WITH_CP",
        "collective": "allreduce", "group_size": 2, "seq": 5, "bytes": 32, "step": 7,
    }  # fmt: skip
    own = ("rank", "start_ns", "duration_ns", "wait_ns", "timeline_ns")
    assert collectives.select(own).rows() == [
        (0, 120_000, 30_000, 10_000, 20_000),
        (1, 130_000, 20_000, 0, 30_000),
    ]
    assert collectives.drop(own).to_dicts() == [one, one]
    assert steps.row(0, named=True) == {
        "rank": 0, "step": 7, "start_ns": 100_000, "duration_ns": 80_000, "compute_ns": 15_000,
        "exposed_communication_ns": 25_000, "exposed_memory_ns": 0, "idle_ns": 40_000,
    }  # fmt: skip
    assert ranks.select("rank", "world_size", "offset_ns", "clock_ns").rows() == [
        (0, 4, -100_000, None),
        (1, 4, -100_000, None),
    ]


def test_every_table_has_the_documented_columns_and_types(tables: Path) -> None:
    text = (ROOT / "docs" / "export.md").read_text()
    for table, schema in SCHEMAS.items():
        assert pl.read_parquet_schema(tables / f"{table}.parquet") == dict(schema)
        for column in schema:
            assert re.search(rf"\b{column}\b", text), f"docs/export.md does not explain {column}"


def test_steps_are_those_of_the_analysis(tables: Path) -> None:
    steps = pl.read_parquet(tables / "steps.parquet")
    expected = analyze(SLOW, jobs=1).to_polars()["steps"]
    assert steps["step"].to_list() == expected["step"].to_list()
    assert steps["start_ns"].to_list() == expected["start_ns"].to_list()
    parts = ("compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns")
    assert steps.select(pl.sum_horizontal(parts) == pl.col("duration_ns")).to_series().all()


def test_the_questions_in_the_documentation_have_answers(
    tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tables.parent)
    text = (ROOT / "docs" / "export.md").read_text()
    late, delays = (
        pl.sql(query).collect() for query in re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
    )
    # The trace is of a run in which rank 2 sleeps.
    assert late.row(0, named=True)["rank"] == 2
    assert late.row(0, named=True)["dimension"] == "dp"
    assert set(delays["rank"]) == {0, 1, 2, 3}
    assert delays["median_us"].min() > 0


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    trace, folder = rank(tmp_path, 0), tmp_path / "tables"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    arguments = [*MAIN, "export", str(trace), "-o", str(folder)]
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == (
        f"torch-trace: {folder}: is not empty; choose another folder or pass --force.\n"
    )
    export(trace, folder, force=True)
    assert sorted(p.name for p in folder.iterdir()) == [
        "collectives.parquet", "events.parquet", "findings.parquet", "kernels.parquet",
        "launches.parquet", "mine.txt", "modules.parquet", "ranks.parquet", "spans.parquet",
        "steps.parquet",
    ]  # fmt: skip
