# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  (a sentence that users read stands on one line)
"""Who is at fault when a job hangs: jobs with one fault each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from record_builder import RecordBuilder

from megatron import torch_trace
from megatron.torch_trace.commands.hang import command
from megatron.torch_trace.flight_recorder.answer import HangAnswer, hang

FOUR = {"tp0": [0, 1], "tp1": [2, 3], "dp0": [0, 2], "dp1": [1, 3]}
FRAMES = [
    {"filename": "/site/torch/distributed/distributed_c10d.py", "line": 3, "name": "all_reduce"},
    {"filename": "megatron/core/tensor_parallel/mappings.py", "line": 20, "name": "_reduce"},
]


def answered(built: RecordBuilder, folder: Path, **how: Any) -> HangAnswer:
    return hang(built.write(folder, **how))


def test_a_rank_in_no_collective_is_at_fault_and_those_that_wait_for_others_are_not(
    tmp_path: Path,
) -> None:
    # Rank 3's CPU is elsewhere: 2 waits for it, 0 for 2, and 1 for 0 and 3.
    built = RecordBuilder(**FOUR)
    built.call(2, "tp1", 8112, state="started").call(0, "dp0", 7).call(1, "dp1", 7)
    answer = answered(built, tmp_path)
    assert answer.culprits == (3,)
    assert answer.verdict == (
        "Rank 3 is in no collective: its CPU is elsewhere, and ranks 1-2 wait for it (first in tensor-parallel all_reduce 8,112)."
    )
    assert [(one.rank, one.state, one.words) for one in answer.ranks] == [
        (0, "waiting", "data-parallel all_reduce 7"),
        (1, "waiting", "data-parallel all_reduce 7"),
        (2, "waiting", "tensor-parallel all_reduce 8,112"),
        (3, "running", ""),
    ]


def test_a_rank_without_a_file_is_named(tmp_path: Path) -> None:
    built = RecordBuilder(**FOUR).call(2, "tp1", 5).call(1, "dp1", 5)
    answer = answered(built, tmp_path, without=3)
    assert answer.culprits == (3,)
    assert answer.verdict == (
        "Rank 3 has left no flight record, and ranks 1-2 wait for it (first in tensor-parallel all_reduce 5)."
    )
    assert answer.ranks[3].state == "missing"


def test_a_gpu_that_did_not_complete_what_the_others_completed_is_stuck(tmp_path: Path) -> None:
    built = RecordBuilder(dp0=[0, 1, 2, 3], tp0=[0, 1], tp1=[2, 3])
    built.call(2, "tp1", 40, "_all_gather_base").call(2, "dp0", 9)
    built.call(3, "tp1", 43, "_all_gather_base").call([0, 1, 3], "dp0", 9)
    answer = answered(built, tmp_path)
    assert answer.culprits == (2,)
    assert answer.verdict == (
        "The GPU of rank 2 is stuck in tensor-parallel all_gather_base 40, which rank 3 has completed."
    )


def test_a_gpu_that_is_stuck_in_two_groups_is_stuck_in_what_it_called_first(tmp_path: Path) -> None:
    built = RecordBuilder(dp0=[0, 1, 2, 3], tp1=[2, 3])
    built.call(2, "tp1", 40).call(2, "dp0", 9).call(3, "tp1", 43).call([0, 1, 3], "dp0", 10)
    answer = answered(built, tmp_path)
    assert answer.verdict == (
        "The GPU of rank 2 is stuck in tensor-parallel all_reduce 40, which rank 3 has completed."
    )
    stuck = answer.ranks[2]
    assert (stuck.words, stuck.pending) == ("tensor-parallel all_reduce 40", 2)
    for entries in built.entries.values():
        entries.reverse()  # torch's buffer is a ring
    assert answered(built, tmp_path).ranks == answer.ranks


def test_a_gpu_is_stuck_whatever_is_called_behind_the_collective(tmp_path: Path) -> None:
    built = RecordBuilder(tp0=[0, 1]).call(0, "tp0", 5).call(0, "tp0", 6)
    built.call(1, "tp0", 5, state="completed").call(1, "tp0", 6, "broadcast")
    answer = answered(built, tmp_path)
    assert [(one.rank, one.cause.value) for one in answer.blames] == [(0, "gpu_stuck")]


def test_numbers_of_transfers_are_of_each_rank_alone(tmp_path: Path) -> None:
    built = RecordBuilder(pp0=[4, 8])
    built.call(4, "pp0", 9, "recv 0<-1").call(8, "pp0", 3, "recv 1<-0")
    assert answered(built, tmp_path).verdict.startswith("All ranks of every pending collective")
    built.call(4, "pp0", 3, "send 0->1", state="completed")
    built.call(4, "pp0", 5).call(8, "pp0", 6)
    assert answered(built, tmp_path).verdict == (
        "The GPU of rank 4 is stuck in pipeline all_reduce 5, which rank 8 has completed."
    )


def test_another_size_is_why_a_rank_is_behind_or_elsewhere(tmp_path: Path) -> None:
    built = RecordBuilder(tp0=[0, 1, 2], dp0=[0, 1, 2])
    built.call([0, 1], "tp0", 6).call(2, "tp0", 6, size=64, state="completed")
    different = [(2, "different_call")]
    answer = answered(built, tmp_path)
    assert [(one.rank, one.cause.value) for one in answer.blames] == different
    built.call(2, "dp0", 8).call([0, 1], "dp0", 9)
    answer = answered(built, tmp_path)
    assert [(one.rank, one.cause.value) for one in answer.blames] == different


def test_a_rank_that_calls_another_size_is_at_fault(tmp_path: Path) -> None:
    built = RecordBuilder(tp0=[0, 1, 2, 3])
    built.call([0, 1, 3], "tp0", 6).call(2, "tp0", 6, size=2048)
    answer = answered(built, tmp_path)
    assert answer.culprits == (2,)
    assert answer.verdict == (
        "Rank 2 calls tensor-parallel all_reduce 6 with [2048] BFloat16, where ranks 0-1, 3 call all_reduce [4096] BFloat16."
    )


def test_a_rank_that_calls_another_collective_is_at_fault(tmp_path: Path) -> None:
    built = RecordBuilder(tp0=[0, 1, 2]).call([0, 1], "tp0", 6).call(2, "tp0", 6, "broadcast")
    assert answered(built, tmp_path).culprits == (2,)


def test_all_to_all_may_have_other_sizes_on_each_rank(tmp_path: Path) -> None:
    built = RecordBuilder(ep0=[0, 1, 2])
    for rank, size in enumerate((100, 100, 200)):
        built.call(rank, "ep0", 6, "all_to_all", size=size)
    assert answered(built, tmp_path).verdict.startswith("All ranks of every pending collective")


def test_a_rank_that_skipped_a_collective_is_at_fault_though_it_waits_elsewhere(
    tmp_path: Path,
) -> None:
    # Rank 3 skipped the all-reduce of four and went on to its pair, where nobody comes.
    built = RecordBuilder(tp0=[0, 1, 2, 3], dp0=[2, 3])
    built.call([0, 1, 2], "tp0", 6).call(3, "dp0", 4)
    answer = answered(built, tmp_path)
    assert answer.culprits == (3,)
    assert answer.verdict == (
        "Rank 3 never called tensor-parallel all_reduce 6, in which ranks 0-2 wait."
    )


def test_a_rank_whose_record_may_lack_the_call_is_not_said_to_have_skipped_it(
    tmp_path: Path,
) -> None:
    built = RecordBuilder(tp0=[0, 1, 2, 3], dp0=[2, 3])
    built.call([0, 1, 2], "tp0", 6).call(3, "dp0", 4).call(3, "tp0", 6, record_id="x")
    assert answered(built, tmp_path).verdict == (
        "Rank 3 may be at fault: which collectives were called there is not known, and no other rank differs from most."
    )


def test_two_ranks_that_are_elsewhere_are_waited_for_in_what_was_called_first(
    tmp_path: Path,
) -> None:
    built = RecordBuilder(tp0=[0, 1], tp1=[2, 3]).call(2, "tp1", 9).call(0, "tp0", 5)
    answer = answered(built, tmp_path)
    assert answer.verdict == (
        "Ranks 1, 3 are in no collective: their CPUs are elsewhere, and ranks 0, 2 wait for them (first in tensor-parallel all_reduce 9)."
    )
    assert answer.advice.startswith("Look at the Python stacks of these processes (`py-spy dump")


def test_of_six_ranks_that_all_call_another_size_four_are_said(tmp_path: Path) -> None:
    built = RecordBuilder(tp0=[*range(6)])
    for rank in range(6):
        built.call(rank, "tp0", 6, size=10 * rank)
    ways = "; ".join(f"rank {rank} all_reduce with [{10 * rank}] BFloat16" for rank in range(4))
    assert answered(built, tmp_path).verdict == (
        f"Ranks 0-5 call tensor-parallel all_reduce 6 differently: {ways}; and 2 more. Nothing tells which of them is wrong."
    )


def test_a_transfer_with_a_rank_that_its_group_does_not_have_blames_nobody(tmp_path: Path) -> None:
    built = RecordBuilder(pp0=[4, 8])
    built.call(4, "pp0", 3, "recv 0<-2").call(8, "pp0", 3, "recv 1<-0")
    answer = answered(built, tmp_path)
    assert answer.culprits == ()
    assert [one.words for one in answer.ranks] == ["pipeline recv", "pipeline recv from 4"]


def test_a_transfer_that_nobody_answers_blames_its_other_end(tmp_path: Path) -> None:
    built = RecordBuilder(pp0=[4, 8]).call(4, "pp0", 3, "recv 0<-1")
    answer = answered(built, tmp_path)
    assert answer.culprits == (8,)
    assert "(first in pipeline recv from 8)" in answer.verdict


def test_several_ranks_of_a_host_are_one_sentence(tmp_path: Path) -> None:
    built = RecordBuilder(dp0=list(range(16))).call(list(range(8)), "dp0", 3)
    answer = answered(built, tmp_path)
    assert answer.culprits == tuple(range(8, 16))
    assert answer.verdict == (
        "Ranks 8-15 are in no collective: their CPUs are elsewhere, and ranks 0-7 wait for them (first in data-parallel all_reduce 3)."
    )
    assert answer.advice.startswith("Look at the Python stacks of these processes (`py-spy dump")


def test_a_collective_that_all_have_called_blames_nobody(tmp_path: Path) -> None:
    answer = answered(RecordBuilder(tp0=[0, 1]).call([0, 1], "tp0", 3), tmp_path)
    assert answer.culprits == ()
    assert answer.verdict.startswith("All ranks of every pending collective have called it")
    assert answer.advice.startswith("Look for errors of the network and of GPUs on the hosts")


def test_completed_calls_alone_are_no_hang(tmp_path: Path) -> None:
    built = RecordBuilder(tp0=[0, 1]).call([0, 1], "tp0", 3, state="completed")
    answer = answered(built, tmp_path)
    assert answer.verdict == (
        "Nothing is pending on any rank: the job does not hang in a collective."
    )


def test_the_command_shows_culprits_first_and_where_others_wait(tmp_path: Path) -> None:
    RecordBuilder(tp0=[0, 1]).call(0, "tp0", 3, frames=FRAMES).write(tmp_path)
    (tmp_path / "job.log").write_text("hello")
    assert CliRunner().invoke(command, [str(tmp_path)]).output == (
        "Rank 1 is in no collective: its CPU is elsewhere, and rank 0 waits for it (first in tensor-parallel all_reduce 3).\n"
        "Look at the Python stack of that process (`py-spy dump --pid PID`): data loader, a lock, a checkpoint, a debugger.\n"
        "\n"
        "rank  state    first pending call            pending  called in\n"
        "1     running\n"
        "0     waiting  tensor-parallel all_reduce 3        1  mappings.py:20 _reduce\n"
        "Skipped 1 other file (no flight record: its name does not end in the number of a rank, as comm_lib_trace_rank_0 does).\n"
    )


def test_json_has_culprits_and_the_python_stack(tmp_path: Path) -> None:
    RecordBuilder(tp0=[0, 1]).call(0, "tp0", 3, frames=FRAMES).write(tmp_path)
    found = json.loads(CliRunner().invoke(command, [str(tmp_path), "--json"]).output)
    assert (found["schema"], found["culprits"]) == (1, [1])
    assert found["causes"] == [{"rank": 1, "cause": "not_in_a_collective", "waiting_ranks": [0]}]
    assert found["ranks"][0] == {
        "rank": 0,
        "state": "waiting",
        "collective": "all_reduce",
        "dimension": "tp",
        "group": "tp0",
        "sequence": 3,
        "sizes": "[4096] BFloat16",
        "module": None,
        "python": [
            "/site/torch/distributed/distributed_c10d.py:3 all_reduce",
            "megatron/core/tensor_parallel/mappings.py:20 _reduce",
        ],
        "pending": 1,
    }
    assert found["ranks"][1]["collective"] is None


def test_python_has_the_same_answer(tmp_path: Path) -> None:
    RecordBuilder(tp0=[0, 1]).call(0, "tp0", 3).write(tmp_path)
    assert torch_trace.hang(tmp_path).culprits == (1,)
