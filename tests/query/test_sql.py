# SPDX-License-Identifier: Apache-2.0
"""`torch-trace sql` and `torch_trace.sql`: whole answers on small traces."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from command_line import last_line, run
from trace_builder import annotation, collective_args, kernel, launch, op, step, write_rank

from megatron import torch_trace
from megatron.torch_trace.parquet import export
from megatron.torch_trace.parquet.schemas import SCHEMAS
from megatron.torch_trace.query.columns import TABLES, columns

ROOT = Path(__file__).parents[2]
SLOW = ROOT / "tests" / "data" / "analysis" / "dp4-rank2-slow"
SPANS = ROOT / "tests" / "data" / "pp2-recompute-spans"
DOCUMENTS = ROOT / "docs"
GROUP = collective_args("allreduce", "dp", nelems=8, dtype="Float")


def rank(folder: Path, number: int) -> Path:
    late = 10_000 * number
    return write_rank(
        folder / f"rank-{number}.json",
        step(7, 100_000, 180_000), op("aten::mm", 101_000, 106_000),
        annotation("forward micro-batch 3 chunk 1 (steady)", 100_500, 109_000),
        annotation("decoder.layers.0.mlp: MLP (recompute)", 101_000, 105_000),
        annotation("optimizer", 109_000, 112_000), annotation("mine", 112_000, 113_000),
        annotation("nccl:all_reduce", 109_500, 111_500),
        launch(102_000, 103_000, 1), launch(110_000, 111_000, 2), launch(114_000, 115_000, 3),
        kernel("void cutlass::gemm<4>(int)", 110_000, 125_000, 1),
        kernel("ncclDevKernel_AllReduce", 120_000 + late, 150_000, 2, stream=27, Seq=5, **GROUP),
        rank=number, baseTimeNanoseconds=1_790_857_026_000_000_000,
    )  # fmt: skip


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("window")
    rank(folder, 0)
    rank(folder, 1)
    return folder


@pytest.fixture(scope="module")
def tables(two_ranks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "tables"
    export(two_ranks, folder, jobs=1)
    return folder


def test_launches_are_calls_with_what_they_put_on_the_gpu(two_ranks: Path) -> None:
    frame = torch_trace.sql(two_ranks, "select * from launches where rank = 1")
    same = {"rank": 1, "name": "cudaLaunchKernel", "thread": "42", "duration_ns": 1_000, "step": 7}
    assert frame.to_dicts() == [
        {**same, "start_ns": 102_000, "correlation": 1, "pieces": 1, "work_start_ns": 110_000,
         "work_ns": 15_000, "kernel": "gemm"},
        {**same, "start_ns": 110_000, "correlation": 2, "pieces": 1, "work_start_ns": 130_000,
         "work_ns": 20_000, "kernel": "ncclDevKernel_AllReduce"},
        {**same, "start_ns": 114_000, "correlation": 3, "pieces": 0, "work_start_ns": None,
         "work_ns": None, "kernel": None},
    ]  # fmt: skip


def test_spans_say_module_micro_batch_phase_or_other(two_ranks: Path) -> None:
    frame = torch_trace.sql(two_ranks, "select * from spans where rank = 0")
    same = {**dict.fromkeys(SCHEMAS["spans"]), "rank": 0, "thread": "42", "step": 7}
    assert frame.to_dicts() == [
        {**same, "kind": "micro-batch", "name": "forward micro-batch 3 chunk 1 (steady)",
         "start_ns": 100_500, "duration_ns": 8_500, "direction": "forward", "micro_batch": 3,
         "chunk": 1, "place": "steady"},
        {**same, "kind": "module", "name": "decoder.layers.0.mlp: MLP (recompute)",
         "start_ns": 101_000, "duration_ns": 4_000, "module": "decoder.layers.0.mlp",
         "type": "MLP", "direction": "recompute"},
        {**same, "kind": "phase", "name": "optimizer", "start_ns": 109_000, "duration_ns": 3_000},
        {**same, "kind": "other", "name": "mine", "start_ns": 112_000, "duration_ns": 1_000},
    ]  # fmt: skip


@pytest.mark.parametrize("table", [table for table in SCHEMAS if table != "findings"])
def test_traces_and_their_export_give_the_same_answer(
    two_ranks: Path, tables: Path, table: str
) -> None:
    of_traces, of_export = (
        torch_trace.sql(path, f"select * from {table}") for path in (two_ranks, tables)
    )
    assert of_traces.schema == dict(SCHEMAS[table])
    assert of_traces.equals(of_export)


@pytest.mark.usefixtures("own_process")
def test_the_first_finding_of_a_recorded_run_has_its_gain_and_where_to_look() -> None:
    frame = torch_trace.sql(
        SLOW, "select code, rank, step, change, gain_ns > gain_error_ns as sure from findings"
    )
    assert frame.row(0) == ("straggler", 2, 6, "--rank 2=median", True)


def test_steps_modules_and_findings_are_those_of_the_analysis() -> None:
    analysis = torch_trace.analyze(SPANS)
    modules = torch_trace.sql(SPANS, "select rank, module, total_ns, flops from modules")
    assert modules.rows() == [
        (one.rank, row.module, row.total_ns, row.flops)
        for one in analysis.ranks
        for row in one.modules
    ]
    findings = torch_trace.sql(SPANS, "select title, evidence from findings order by number")
    assert dict(findings.rows()) == {
        one.title: json.dumps(dict(one.evidence)) for one in analysis.findings
    }


def test_parts_of_a_step_are_null_where_the_utilisation_is_unknown(tmp_path: Path) -> None:
    trace = write_rank(
        tmp_path / "rank-0.json", step(1, 0, 90_000), launch(1_000, 2_000, 1), rank=0
    )
    answer = torch_trace.sql(trace, "select duration_ns, compute_ns, idle_ns from steps")
    assert answer.rows() == [(90_000, None, None)]


def test_a_trace_that_does_not_tell_its_rank_is_rank_0(tmp_path: Path) -> None:
    trace = write_rank(tmp_path / "trace.json", step(1, 0, 90_000), op("aten::mm", 1, 2), rank=None)
    for table in ("steps", "events"):
        assert torch_trace.sql(trace, f"select distinct rank from {table}").item() == 0


@pytest.mark.parametrize(
    ("form", "shown"),
    [
        ("table", "rank  step  text  share\n   0     7  a b    0.25\n"
                  "   1     7  -       0.5\n"),
        ("csv", 'rank,step,text,share\n0,7,a b,0.25\n1,7,,0.5\n'),
        ("json", '{"schema": 1, "columns": ["rank", "step", "text", "share"], "rows": '
                 '[[0, 7, "a b", 0.25], [1, 7, null, 0.5]], "left_out": 0}\n'),
    ],
)  # fmt: skip
def test_an_answer_is_a_table_csv_or_json(tables: Path, form: str, shown: str) -> None:
    query = (
        "select rank, step, case when rank = 0 then 'a b' end as text, "
        "(rank + 1) / 4 as share from steps order by rank"
    )
    done = run("sql", tables, query, "--format", form)
    assert (done.returncode, done.stdout.decode(), done.stderr) == (0, shown, b"")


def test_rows_and_texts_that_are_left_out_are_counted(tables: Path) -> None:
    query = "select name from kernels order by rank, start_ns"
    done = run("sql", tables, query, "--rows", 1, "--width", 9)
    assert done.stdout.decode() == "name\nvoid…int)\n"
    assert done.stderr.decode() == (
        "3 more rows; --rows N prints more.\n1 text is cut; --width N shows more of it.\n"
    )
    document = json.loads(run("sql", tables, query, "--rows", 3, "--format", "json").stdout)
    assert document["left_out"] == 1
    assert len(document["rows"]) == 3


def test_control_characters_of_a_trace_reach_no_terminal(tmp_path: Path) -> None:
    trace = write_rank(tmp_path / "rank-0.json", step(1, 0, 90_000), op("a\x1b[31m", 1, 2), rank=0)
    printed = {
        form: run("sql", trace, "select name from events", "--format", form).stdout
        for form in ("table", "csv", "json")
    }
    assert [b"\x1b" in text for text in printed.values()] == [False] * 3
    assert printed["table"] == printed["csv"] == b"name\nProfilerStep#1\na\\x1b[31m\n"
    assert json.loads(printed["json"])["rows"] == [["ProfilerStep#1"], ["a\x1b[31m"]]


@pytest.mark.usefixtures("own_process")
def test_a_damaged_trace_is_answered_as_far_as_it_goes(tmp_path: Path) -> None:
    trace = rank(tmp_path, 0)
    trace.write_bytes(trace.read_bytes()[:-400])
    done = run("sql", trace, "select count(*) as n from ranks", "--format", "csv")
    assert (done.returncode, done.stdout) == (3, b"n\n1\n")
    assert last_line(done.stderr).startswith(f"torch-trace: {trace}: ")
    assert run("sql", trace, "select 1 from ranks", "--strict").returncode == 4


def test_the_list_has_every_table_and_column_with_its_unit() -> None:
    assert {*TABLES} == {*SCHEMAS}
    listed = run("sql", "--list").stdout.decode()
    for one in columns():
        unit = f", {one.unit}" if one.unit else ""
        assert re.search(rf"^  {one.name} +{one.type}{unit}$", listed, re.MULTILINE)
    assert {one.unit for one in columns()} == {"", "ns", "bytes", "of 1", "FLOPs", "TFLOP/s"}


def test_only_the_tables_that_a_query_names_are_made(
    two_ranks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def spy(*args: object, **options: object) -> object:
        asked.append(list(options["tables"]))  # type: ignore[call-overload]
        return export(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("megatron.torch_trace.query.tables.export", spy)
    torch_trace.sql(two_ranks, "select kernels, module from modules")
    torch_trace.sql(two_ranks, "with k as (select * from Kernels) select * from k, ranks")
    assert asked == [["ranks", "kernels"]]


def test_an_export_of_some_tables_answers_for_them_alone(two_ranks: Path, tmp_path: Path) -> None:
    out = tmp_path / "tables"
    done = run("export", two_ranks, "-o", out, "--table", "steps", "--table", "ranks")
    assert done.returncode == 0
    assert sorted(one.name for one in out.iterdir()) == ["ranks.parquet", "steps.parquet"]
    assert torch_trace.sql(out, "select count(*) from steps").item() == 2
    assert last_line(run("sql", out, "select 1 from kernels").stderr) == (
        f"torch-trace: {out}: has no kernels.parquet, only ranks, steps; export the traces again, "
        "or name the traces."
    )
    assert last_line(run("export", two_ranks, "-o", out, "--table", "kernel").stderr) == (
        "torch-trace: --table kernel: no such table; did you mean kernels?"
    )


QUERIES = re.findall(r"```sql\n(.*?)```", (DOCUMENTS / "sql.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("query", QUERIES)
def test_every_query_of_the_document_has_an_answer(query: str) -> None:
    sample = SPANS if re.search(r"\b(modules|spans)\b", query) else SLOW
    assert len(torch_trace.sql(sample, query)) > 0


@pytest.mark.usefixtures("own_process")
def test_the_document_shows_what_is_printed() -> None:
    text = (DOCUMENTS / "sql.md").read_text()
    query = re.search(r'sql iter-0000005/ "(.*)"\n', text)
    assert query is not None
    shown = re.findall(r"^ {4}( *(?:rank|\d) +\S+)$", text, re.MULTILINE)
    printed = run("sql", SLOW, query[1]).stdout.decode()
    assert "\n".join(shown) + "\n" == printed


def test_export_md_asks_the_same_with_the_names_of_tables() -> None:
    text = (DOCUMENTS / "export.md").read_text()
    queries = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
    assert len(queries) > 1
    for query in queries:
        own = re.sub(r"read_parquet\('tables/(\w+)\.parquet'\)(?: AS \1)?", r"\1", query)
        assert len(torch_trace.sql(SLOW, own)) > 0
