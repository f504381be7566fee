# SPDX-License-Identifier: Apache-2.0
"""`compare`: which rows belong together, differences, noise, conditions."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from compared_windows import HOSTILE, MS, comparison, run, window
from recorded_traces import SAMPLES
from trace_builder import GEMM, NCCL, TraceBuilder

from megatron.torch_trace.analysis.compare.configuration import Change, flags_of
from megatron.torch_trace.analysis.compare.different_work import WorkAmount
from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.report.comparison.sections import sections

_WINDOWS = SAMPLES.parents[1] / "examples" / "traces" / "late-ranks"
LATE = (_WINDOWS / "iter-0000078-0000080", _WINDOWS / "iter-0000114-0000116")


def test_numbers_are_for_an_iteration_and_a_rank(tmp_path: Path) -> None:
    found = comparison(
        window(tmp_path / "a", (4, 4, 4), ranks=2), window(tmp_path / "b", (6,), ranks=1)
    )
    assert (found.iteration.before, found.iteration.after) == (10 * MS, 10 * MS)
    compute = found.breakdown["compute"]
    assert (compute.before, compute.after, compute.change) == (4 * MS, 6 * MS, 2 * MS)
    assert compute.relative == 0.5
    (gemm,) = [row for row in found.kernels if row.name == GEMM]
    assert (gemm.calls.before, gemm.calls.after) == (1, 1)
    assert (gemm.time.before, gemm.time.after) == (4 * MS, 6 * MS)


def test_parts_of_the_difference_add_up_to_the_iterations() -> None:
    found = comparison(SAMPLES / "analysis" / "dp4", SAMPLES / "analysis" / "dp4-rank2-slow")
    parts = ("compute", "exposed_communication", "exposed_memory", "idle")
    changes = [found.breakdown[part].change or 0.0 for part in parts]
    assert sum(changes) == pytest.approx(found.iteration.change)


def test_the_straggler_is_named_in_the_first_lines() -> None:
    folder = SAMPLES / "analysis"
    text = run(folder / "dp4", folder / "dp4-rank2-slow").output
    assert "\nRank 2 is late in B: " in text[:600]
    found = json.loads(run(folder / "dp4", folder / "dp4-rank2-slow", "--json").output)
    assert found["straggler"]["b"] == 2
    assert found["stragglers"][0]["rank"] == 2
    assert "straggler" in [one["code"] for one in found["findings"]["appeared"]]


def test_a_change_that_is_sure_has_no_exponent_in_its_sentence(tmp_path: Path) -> None:
    text = run(*LATE, "-o", tmp_path / "page.html").output
    assert "this is more than the noise of 3 and 3 steps (p < 0.001)." in " ".join(text.split())
    assert "88.2\u00a0ms → 134\u00a0ms" in (tmp_path / "page.html").read_text()


def test_a_phase_has_its_whole_name() -> None:
    """A kernel's first word may be its return type; that of `forward micro-batch` is not."""
    text = run(*LATE).output
    phases = text[text.index("PHASES OF THE LOOP") :]
    assert re.findall(r"^  (.*micro-batch)  ", phases, re.MULTILINE) == [
        "forward micro-batch",
        "backward micro-batch",
    ]


def test_a_kernel_that_only_one_side_has_has_appeared_or_vanished(tmp_path: Path) -> None:
    found = comparison(
        window(tmp_path / "a", kernel="old_kernel"), window(tmp_path / "b", kernel="new_kernel")
    )
    times = {row.name: (row.time.before, row.time.after) for row in found.kernels}
    assert times["old_kernel"] == (4 * MS, None)
    assert times["new_kernel"] == (None, 4 * MS)
    assert found.kernels[-1].name == NCCL


def test_a_run_that_does_less_work_is_named_before_its_times(tmp_path: Path) -> None:
    a, b = window(tmp_path / "a", (4, 4)), window(tmp_path / "b", (3, 3), extra=f"{GEMM}_again")
    assert comparison(a, b).different_work == (WorkAmount("kernels", "gemm", 1, 2),)
    assert comparison(a, a).different_work == ()
    lines = run(a, b).output.replace("\n  ", " ").splitlines()
    assert (
        "A and B do not do the same work in an iteration: a rank runs 1 -> 2 gemm kernels. "
        "A difference in time may come from that alone."
    ) in lines
    found = json.loads(run(a, b, "--json").output)["different_work"]
    assert found == [{"kind": "kernels", "of": "gemm", "before": 1.0, "after": 2.0}]


def test_a_side_that_knows_nothing_of_its_gpu_does_no_other_work(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    TraceBuilder(0, 1).step(1, 0, 10 * MS).op("aten::mm", MS, 2 * MS).write(
        tmp_path / "b" / "rank-0.json"
    )
    assert comparison(window(tmp_path / "a"), tmp_path / "b").different_work == ()


def test_flags_that_differ_are_named_first(tmp_path: Path) -> None:
    a = window(tmp_path / "a", argv=["train.py", "--bf16", "--micro-batch-size", "1", "--lr=0.1"])
    b = window(
        tmp_path / "b",
        argv=["train.py", "--micro-batch-size", "2", "--lr", "0.1", "--torch-profile-with-stack"],
    )
    assert comparison(a, b).configuration.changes == (
        Change("flag", "--bf16", "", None),
        Change("flag", "--micro-batch-size", "1", "2"),
        Change("recording", "--torch-profile-with-stack", None, ""),
    )
    assert flags_of(["--split", "90", "5", "--x=a b", "--y"]) == {
        "--split": "90 5",
        "--x": "a b",
        "--y": "",
    }


def with_run(folder: Path, name: str, **changed: Any) -> Path:
    run_folder = folder / name
    run_json = {
        "argv": ["train.py"],
        "arguments": {"hidden_size": 8, "rank": 0, "save": "x"},
        "versions": {"torch": "2.9.0", "apex": None},
        "environment": {"NCCL_ALGO": "Ring", "SLURM_JOB_ID": name},
        "layout": {"tp": 1, "dp": 2},
        **changed,
    }
    window(run_folder / "iter-0000005")
    (run_folder / "run.json").write_text(json.dumps(run_json))
    return run_folder / "iter-0000005"


def test_run_json_tells_versions_environment_and_layout_but_no_job_ids(tmp_path: Path) -> None:
    a = with_run(tmp_path, "20260101-000000")
    b = with_run(
        tmp_path,
        "20260102-000000",
        arguments={"hidden_size": 16, "rank": 1, "save": "y", "only_newer_megatron_knows": 1},
        versions={"torch": "2.9.1", "apex": None},
        environment={"NCCL_ALGO": "Tree", "SLURM_JOB_ID": "8"},
        layout={"tp": 2, "dp": 1},
    )
    assert comparison(a, b).configuration.changes == (
        Change("argument", "hidden_size", "8", "16"),
        Change("version", "torch", "2.9.0", "2.9.1"),
        Change("environment", "NCCL_ALGO", "Ring", "Tree"),
        Change("topology", "dp size", "2", "1"),
        Change("topology", "tp size", "1", "2"),
        Change("place", "save", "x", "y"),
    )
    assert "A and B are of the same run" in run(a, a).output


def test_what_is_not_recorded_is_said(tmp_path: Path) -> None:
    a, b = window(tmp_path / "a"), with_run(tmp_path, "20260101-000000")
    assert comparison(a, b).configuration.not_recorded == ("A",)
    text = " ".join(run(a, b).output.split())
    assert "The flags cannot be compared: A has no run.json beside the traces" in text


def test_the_page_shows_a_hostile_name_as_text_and_is_complete_in_itself(tmp_path: Path) -> None:
    a, b = window(tmp_path / "a"), window(tmp_path / "b", extra=HOSTILE)
    output = tmp_path / "compare.html"
    assert run(a, b, "-o", output).exit_code == 0
    page = output.read_text()
    assert page.count("<script") == 1  # the page's own, and its policy lets no other run
    assert "script-src &#39;sha256-" in page
    assert "<img" not in page
    assert "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;" in page
    assert "http://" not in page
    assert "https://" not in page
    assert isinstance(run(a, b, "-o", output).exception, UsageError)


def test_what_may_be_noise_has_no_colour_on_the_page(tmp_path: Path) -> None:
    samples = SAMPLES / "analysis"
    output = tmp_path / "compare.html"
    assert run(samples / "dp4", samples / "dp4-rank2-slow", "-o", output).exit_code == 0
    rows = re.findall(r"<tr[^>]*>\n?(.*?)</tr>", output.read_text(), re.DOTALL)
    changes = [
        (re.findall(r"<td class=\"n ?(\w*)\"[^>]*>[+-]\d", row), ">no</td>" in row) for row in rows
    ]
    assert {tone for tones, may_be_noise in changes if may_be_noise for tone in tones} == {""}
    assert {tone for tones, may_be_noise in changes if not may_be_noise for tone in tones} == {
        "more", "less",
    }  # fmt: skip


@pytest.mark.parametrize("folders", [("dp4", "dp4-rank2-slow"), ("dp4", "ep4-moe")])
def test_text_is_plain_and_fits_and_json_has_no_nan(folders: tuple[str, str]) -> None:
    paths = [SAMPLES / "analysis" / folder for folder in folders]
    text = run(*paths).output
    assert text.isascii()
    assert [line for line in text.splitlines() if len(line) > 100] == []
    json.loads(run(*paths, "--json").output, parse_constant=lambda name: pytest.fail(name))


def test_of_many_ranks_those_that_changed_most_are_shown(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    for folder, odd in ((a, 4), (b, 7)):
        for rank in range(18):
            window(tmp_path / "one", (odd if rank == 17 else 4,), ranks=1)
            trace = json.loads((tmp_path / "one" / "rank-0.json").read_text())
            trace["distributedInfo"] = {"rank": rank, "world_size": 18}
            folder.mkdir(exist_ok=True)
            (folder / f"rank-{rank}.json").write_text(json.dumps(trace))
    (ranks,) = [one for one in sections(comparison(a, b), top=3) if one.caption == "Ranks"]
    cells = [[cell.text for cell in row.cells] for row in ranks.rows]
    assert [row[0] for row in cells] == [str(rank) for rank in range(2, 18)]
    assert cells[-1][:5] == ["17", "10.0 -> 10.0", "0", "4.00 -> 7.00", "+3.00"]
    assert ranks.more == 2


def test_a_part_that_one_side_does_not_know_has_no_change(tmp_path: Path) -> None:
    lost = TraceBuilder(0, 1).step(1, 0, 10 * MS).op("aten::mm", MS, 2 * MS)
    (tmp_path / "b").mkdir()
    lost.write(tmp_path / "b" / "rank-0.json")
    found = comparison(window(tmp_path / "a", ranks=1), tmp_path / "b")
    tables = {one.caption: one for one in sections(found, top=8)}
    parts = [[cell.text for cell in row.cells] for row in tables["Where the time went"].rows]
    assert ["compute", "4.00", "unknown", "unknown", ""] in [row[:5] for row in parts]
    assert not any("gone" in cell for row in parts for cell in row)


def test_the_page_begins_its_tables_with_what_is_sure_and_shows_the_rest_on_demand(
    tmp_path: Path,
) -> None:
    output = tmp_path / "compare.html"
    assert run(window(tmp_path / "a", (4, 4, 4)), window(tmp_path / "b", (6, 6, 6)), "-o",
               output).exit_code == 0  # fmt: skip
    page = output.read_text()
    assert 'id="kernels"' in page
    assert 'data-limit="16"' in page
    assert 'id="search"' in page
    assert page.count('class="copy"') == page.count("<table")
