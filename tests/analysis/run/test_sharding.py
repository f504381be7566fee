# SPDX-License-Identifier: Apache-2.0
"""`analyze --partials` by several processes: each trace by one of them, and one answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import Result
from command_line import invoked
from trace_builder import GEMM, TraceBuilder

from megatron.torch_trace.analysis.run.shares import Shard
from megatron.torch_trace.commands.terminal.kept_analysis import cores_of_task
from megatron.torch_trace.errors import UsageError


def trace(folder: Path, rank: int) -> None:
    builder = TraceBuilder(rank, 3).step(5, 0, 1000).gpu(GEMM, 10, 500, launch=5)
    builder.collective(500 - rank, 600, size=3).write(folder / f"rank-{rank}.pt.trace.json")


def run(folder: Path, *arguments: str, **environment: str) -> Result:
    return invoked("analyze", folder, "-j", "1", *arguments, **environment)


def files(tmp_path: Path, *sizes: int) -> list[Path]:
    found = []
    for number, size in enumerate(sizes):
        found.append(tmp_path / f"{number}.json")
        found[-1].write_bytes(b"x" * size)
    return found


def test_shares_are_of_about_equal_size_and_no_trace_is_in_two(tmp_path: Path) -> None:
    given = files(tmp_path, 900, 100, 500, 400, 300, 200)
    shares = [Shard(number, 3).of(given) for number in (1, 2, 3)]
    assert sorted(path for share in shares for path in share) == given
    assert [sum(path.stat().st_size for path in share) for share in shares] == [900, 800, 700]


def test_more_shares_than_traces_leave_some_without_work(tmp_path: Path) -> None:
    given = files(tmp_path, 10, 10)
    assert sorted(len(Shard(number, 4).of(given)) for number in range(1, 5)) == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("1", "--shard 1: is not I/N, such as 1/8 for the first of eight."),
        ("0/4", "--shard 0/4: there are shares 1/4 to 4/4."),
        ("5/4", "--shard 5/4: there are shares 1/4 to 4/4."),
        ("-1/4", "--shard -1/4: is not I/N, such as 1/8 for the first of eight."),
    ],
)
def test_a_share_that_cannot_be_is_a_sentence(text: str, why: str) -> None:
    with pytest.raises(UsageError) as error:
        Shard.parse(text)
    assert str(error.value) == why


@pytest.mark.parametrize(
    ("environment", "share"),
    [
        ({}, None),
        # The batch script itself, and a step of one task in a job of many.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, None),
        (
            {
                "SLURM_STEP_ID": "3",
                "SLURM_STEP_NUM_TASKS": "1",
                "SLURM_PROCID": "0",
                "SLURM_NTASKS": "8",
            },
            None,
        ),
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "7"}, Shard(8, 8)),
        ({"SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_PROCID": "0"}, Shard(1, 2)),
    ],
)
def test_a_task_of_a_slurm_step_knows_its_share(
    environment: dict[str, str], share: Shard | None
) -> None:
    assert Shard.of_step(environment) == share


@pytest.mark.parametrize(("given", "cores"), [({}, 1), ({"SLURM_CPUS_PER_TASK": "4"}, 4)])
def test_a_task_uses_the_cores_that_it_was_given(given: dict[str, str], cores: int) -> None:
    assert cores_of_task(given) == cores


def test_shares_together_give_the_direct_answer(tmp_path: Path) -> None:
    for rank in range(3):
        trace(tmp_path, rank)
    direct = run(tmp_path, "--json", "--no-partials", "--no-gains").output  # which need traces
    said = [
        run(
            tmp_path,
            "--partials",
            SLURM_STEP_ID="0",
            SLURM_STEP_NUM_TASKS="2",
            SLURM_PROCID=str(task),
        )
        for task in range(2)
    ]
    assert [one.exit_code for one in said] == [0, 0]
    first, last = said[0].stdout.splitlines()
    assert first.startswith("Share 1/2 has 2 of 3 traces: analysed 2 traces in ")
    assert last == f"When all 2 shares are done, run: torch-trace analyze {tmp_path}"
    assert said[1].stdout.startswith("Share 2/2 has 1 of 3 traces: analysed 1 trace in ")
    again = run(tmp_path, "--partials", "--shard", "1/2")
    assert again.stdout.startswith("Share 1/2 has 2 of 3 traces: 2 traces were analysed before.\n")
    assert run(tmp_path, "--json").stdout == direct


def test_one_process_keeps_all_and_answers(tmp_path: Path) -> None:
    for rank in range(2):
        trace(tmp_path, rank)
    direct = run(tmp_path, "--no-partials").stdout
    kept = run(tmp_path, "--partials")
    assert kept.stdout == direct
    assert kept.stderr.startswith("torch-trace: Analysed 2 traces in ")


def test_of_several_windows_the_partials_are_kept_and_one_is_to_be_named(tmp_path: Path) -> None:
    for window in ("iter-0000003", "iter-0000007"):
        trace(tmp_path / window, 0)
    done, advice = run(tmp_path, "--partials").stdout.splitlines()
    assert done.startswith("Analysed 2 traces in ")
    assert (
        advice == f"For one of the 2 windows, run: torch-trace analyze {tmp_path / 'iter-0000003'}"
    )


def test_a_trace_that_cannot_be_analysed_stops_no_share(tmp_path: Path) -> None:
    trace(tmp_path, 0)
    TraceBuilder(1, 3).op("aten::mm", 0, 10).write(tmp_path / "rank-1.pt.trace.json")
    said = run(tmp_path, "--partials", "--shard", "1/1")
    assert said.exit_code == 0
    assert said.stdout.startswith("Share 1/1 has 2 of 2 traces: analysed 1 trace in ")
    assert "1 trace cannot be analysed" in said.stdout
    assert "rank-1.pt.trace.json: holds neither ProfilerStep nor GPU work." in said.stderr


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--shard", "1/2"), "--shard 1/2: needs --partials"),
        (("--no-tables",), "--no-tables: needs --json"),
        (("--shard", "1/2", "--no-partials"), "--shard 1/2: needs --partials"),
        (("--partials", "--step", "5"), "--step 5: --partials keeps whole windows"),
        (("--partials", "--shard", "1/2", "--json"), "--json: share 1/2 prints no analysis"),
    ],
)
def test_what_contradicts_itself_is_a_sentence(
    tmp_path: Path, arguments: tuple[str, ...], why: str
) -> None:
    trace(tmp_path, 0)
    error = run(tmp_path, *arguments).exception
    assert isinstance(error, UsageError)
    assert str(error).startswith(why)
