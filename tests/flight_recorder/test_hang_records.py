# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  (a sentence that users read stands on one line)
"""Hang records of a run, with torch's flight records and without."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from click.testing import CliRunner
from record_builder import RecordBuilder

from megatron.torch_trace.commands.hang import command
from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.flight_recorder.answer import hang
from megatron.torch_trace.format.hang_records import (
    FLIGHT_SUFFIX,
    HANG_SUFFIX,
    HangName,
    HangRecord,
    ThreadStack,
)

SECOND = 1_000_000_000
WAITS = (
    "/site/torch/distributed/distributed_c10d.py:2800 all_reduce",
    "/site/torch/distributed/c10d_logger.py:81 wrapper",
    "/megatron/core/tensor_parallel/mappings.py:20 _reduce",
)
IN_THE_LOADER = (
    "/usr/lib/python3.12/threading.py:355 wait",
    "/site/torch/utils/data/dataloader.py:88 __next__",
    "/megatron/training/training.py:900 train_step",
)


class Run:
    """A run of four ranks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "hangs").mkdir()

    def rank(
        self,
        rank: int,
        stack: tuple[str, ...],
        *,
        code: str = "",
        began_s: float = 1000,
        iteration: int = 87,
        modules: tuple[str, ...] = (),
        micro_batch: int | None = None,
    ) -> Path:
        began_ns = int(began_s * SECOND)
        record = HangRecord(
            rank=rank,
            world_size=4,
            host=f"node{rank // 2}",
            pid=100 + rank,
            iteration=iteration,
            seconds=30.0,
            written_ns=began_ns + 30 * SECOND,
            began_ns=began_ns,
            modules=modules,
            micro_batch=micro_batch,
            threads=(ThreadStack("MainThread", True, stack, code),),
        )
        name = HangName(rank, iteration).stem
        path = self.folder / "hangs" / f"{name}{HANG_SUFFIX}"
        path.write_text(record.as_text())
        return path


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
    for rank in range(4):
        # With a GPU the CPU runs ahead: where the others' CPUs are tells nothing.
        path = run.rank(rank, IN_THE_LOADER)
        flight = path.with_name(path.name.removesuffix(HANG_SUFFIX) + FLIGHT_SUFFIX)
        flight.write_bytes(pickle.dumps(built.record(rank), 2))
    answer = hang(tmp_path)
    assert answer.culprits == (3,)
    assert answer.verdict == (
        "Rank 3 is in no collective: it is in dataloader.py:88 (__next__, data loader), and ranks 1-2 wait for it (first in tensor-parallel all_reduce 8,112)."
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


def test_only_the_last_hang_of_a_run_counts_and_earlier_ones_are_named(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for rank in range(4):
        run.rank(rank, IN_THE_LOADER, began_s=100, iteration=9)
    for rank in (0, 1, 2):
        run.rank(rank, WAITS, began_s=1000 + rank)
    answer = hang(tmp_path)
    assert answer.culprits == (3,)
    assert sorted(reason for _, reason in answer.skipped) == ["of an earlier hang"] * 4


def test_a_hang_soon_after_another_one_is_a_hang_of_its_own(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for rank in range(4):
        run.rank(rank, IN_THE_LOADER, began_s=1000, iteration=9)
    for rank in (0, 1, 2):
        run.rank(rank, WAITS, began_s=1010, iteration=12 if rank else 11)
    assert hang(tmp_path).culprits == (3,)


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


def test_records_can_be_named_by_the_run_by_their_folder_and_by_themselves(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for rank in (0, 1, 3):
        run.rank(rank, WAITS)
    run.rank(2, IN_THE_LOADER)
    files = sorted((tmp_path / "hangs").iterdir())
    assert hang(tmp_path).verdict == hang(tmp_path / "hangs").verdict == hang(files).verdict


def test_the_line_outside_of_torch_is_named(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for rank in (0, 1, 3):
        run.rank(rank, WAITS)
    run.rank(2, ("/site/torch/_tensor.py:47 wrapped", "/megatron/clip_grads.py:121 get_grad_norm"))
    assert "it is in clip_grads.py:121 (get_grad_norm), and" in hang(tmp_path).verdict
