# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  (a sentence that users read stands on one line)
"""Hang records of a run, with torch's flight records and without."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from hang_run import IN_THE_LOADER, WAITS, Run, write_flights
from record_builder import RecordBuilder

from megatron.torch_trace.commands.hang import command
from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.flight_recorder.answer import hang


def test_a_rank_in_the_data_loader_is_named_with_the_line_while_others_wait(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for rank in (0, 1, 3):
        run.rank(rank, WAITS)
    run.rank(2, IN_THE_LOADER)
    answer = hang(tmp_path)
    assert answer.culprits == (2,)
    assert answer.verdict == (
        "Rank 2 is in no collective: it is in dataloader.py:88 (__next__, data loader), and ranks 0-1, 3 wait for it (first in all_reduce, mappings.py:20 _reduce)."
    )
    assert [one.state for one in answer.ranks] == ["waiting", "waiting", "running", "waiting"]


def test_module_and_micro_batch_are_told_where_the_stack_tells_them(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for rank in (0, 1, 3):
        run.rank(rank, WAITS)
    run.rank(2, ("/my/layer.py:7 forward",), modules=("decoder.layers.3.mlp: MLP",), micro_batch=5)
    assert hang(tmp_path).verdict.startswith(
        "Rank 2 is in no collective: it is in layer.py:7 (forward), micro-batch 5, in decoder.layers.3.mlp: MLP, and "
    )


def test_ranks_without_a_record_are_named_also_without_any_flight_record(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.rank(0, WAITS)
    run.rank(3, ("/megatron/core/p2p_communication.py:9 _communicate",), code="req.wait()")
    answer = hang(tmp_path)
    assert answer.culprits == (1, 2)
    assert answer.verdict == (
        "Ranks 1-2 have left no hang record, and ranks 0, 3 wait for them (first in all_reduce, mappings.py:20 _reduce)."
    )


def test_flight_records_of_the_same_hang_name_the_collective(tmp_path: Path) -> None:
    run = Run(tmp_path)
    built = RecordBuilder(tp0=[0, 1], tp1=[2, 3], dp0=[0, 2], dp1=[1, 3])
    built.call(2, "tp1", 8112).call(0, "dp0", 7).call(1, "dp1", 7)
    paths = {}
    for rank in range(4):
        # With a GPU the CPU runs ahead: where the others' CPUs are tells nothing.
        paths[rank] = run.rank(rank, IN_THE_LOADER if rank else WAITS)
    write_flights(built, paths)
    answer = hang(tmp_path)
    assert answer.culprits == (3,)
    assert answer.verdict == (
        "Rank 3 is in no collective: it is in dataloader.py:88 (__next__, data loader), and ranks 1-2 wait for it (first in tensor-parallel all_reduce 8,112)."
    )


def test_a_rank_that_never_called_a_collective_is_named_with_what_it_waits_for(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path)
    built = RecordBuilder(dp0=[0, 1, 2, 3], tp1=[2, 3])
    built.call([0, 1, 2], "dp0", 7).call(3, "tp1", 9)
    stack = ("/my/loss.py:7 loss_func",)
    write_flights(built, {rank: run.rank(rank, stack, code="x.item()") for rank in range(4)})
    assert hang(tmp_path).verdict == (
        "Rank 3 never called data-parallel all_reduce 7, in which ranks 0-2 wait. It waits for the GPU in loss.py:7 (loss_func)."
    )


def test_ranks_that_are_in_different_places_are_told_apart(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.rank(0, WAITS)
    for rank in (1, 2, 3):
        run.rank(rank, (f"/my/step{rank}.py:7 forward",))
    assert hang(tmp_path).verdict.startswith(
        "Ranks 1-3 are in no collective: rank 1 is in step1.py:7 (forward); rank 2 is in step2.py:7 (forward); rank 3 is in step3.py:7 (forward), and rank 0 waits for them"
    )


def test_ranks_that_left_nothing_and_that_nobody_waits_for_are_not_called_damaged(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path)
    built = RecordBuilder(tp0=[0, 1]).call([0, 1], "tp0", 3)
    write_flights(built, {rank: run.rank(rank, IN_THE_LOADER) for rank in (0, 1)})
    assert hang(tmp_path).verdict.startswith("All ranks of every pending collective have called")


def test_who_has_no_whole_record_of_either_kind_may_be_at_fault(tmp_path: Path) -> None:
    run = Run(tmp_path)
    built = RecordBuilder(tp0=[0, 1, 2, 3]).call([0, 1, 2], "tp0", 3)
    paths = {rank: run.rank(rank, IN_THE_LOADER) for rank in range(4)}
    write_flights(built, {rank: paths[rank] for rank in range(3)})
    silent = hang(tmp_path)
    assert silent.culprits == ()
    assert (
        silent.verdict
        == "Rank 3 may be at fault: which collectives were called there is not known, and no other rank differs from most."
    )
    paths[3].write_text("{")
    assert hang(tmp_path).verdict == (
        "Rank 3 may be at fault: its record is damaged, and no other rank differs from most."
    )


def test_who_asks_whether_the_loss_is_a_number_waits_for_the_gpu(tmp_path: Path) -> None:
    run = Run(tmp_path)
    asks = ("/site/megatron/core/rerun_state_machine.py:598 validate_result",)
    for rank in (0, 1, 3):
        run.rank(rank, asks, code="if result_rejected:")
    # The same function waits for nothing where it writes what it has found.
    run.rank(2, asks, code="self._log_validation_error_to_file(")
    answer = hang(tmp_path)
    assert answer.culprits == (2,)
    assert answer.verdict.startswith(
        "Rank 2 is in no collective: it is in rerun_state_machine.py:598 (validate_result), and ranks 0-1, 3 wait for it (first in the GPU,"
    )


def test_a_record_that_is_not_whole_is_named_and_its_rank_is_not_blamed(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for rank in (0, 1, 3):
        run.rank(rank, WAITS)
    path = run.rank(2, IN_THE_LOADER)
    path.write_text(path.read_text()[:100])
    answer = hang(tmp_path)
    assert (answer.culprits, answer.damaged) == ((), (path,))
    assert answer.verdict == (
        "Rank 2 may be at fault: its record is damaged, and no other rank differs from most."
    )
    assert CliRunner().invoke(command, [str(tmp_path)], standalone_mode=False).exception
    for one in (tmp_path / "hangs").iterdir():
        one.write_text("[1]")
    with pytest.raises(UsageError, match="no hang record in it is whole"):
        hang(tmp_path)


def test_where_nobody_waits_or_nobody_differs_nobody_is_blamed(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for rank in range(4):
        run.rank(rank, IN_THE_LOADER)
    assert hang(tmp_path).verdict.startswith("No rank waits in a collective")
    for rank in range(4):
        run.rank(rank, WAITS)
    answer = hang(tmp_path)
    assert answer.culprits == ()
    assert answer.verdict.startswith("All ranks wait in collectives")


def test_a_run_without_hang_records_is_told_which_flag_makes_them(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(UsageError, match="no rank of this run has left a hang record; start the "):
        hang(tmp_path)


def test_a_run_with_the_flag_that_did_not_hang_is_not_told_to_set_it(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"arguments": {"torch_profile_on_hang": 300.0}}')
    with pytest.raises(UsageError, match="none of its iterations took 300 s, or its ranks were"):
        hang(tmp_path)


def test_the_line_outside_of_torch_is_named(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for rank in (0, 1, 3):
        run.rank(rank, WAITS)
    run.rank(2, ("/site/torch/_tensor.py:47 wrapped", "/megatron/clip_grads.py:121 get_grad_norm"))
    assert "it is in clip_grads.py:121 (get_grad_norm), and" in hang(tmp_path).verdict
