# SPDX-License-Identifier: Apache-2.0
"""Flight records as files: all versions and forms, damaged ones, and what is none."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import pytest
from click.testing import CliRunner
from record_builder import RecordBuilder

from megatron.torch_trace.commands.hang import command
from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.flight_recorder.answer import hang


def test_json_compressed_and_older_records_say_the_same(tmp_path: Path) -> None:
    built = RecordBuilder(tp0=[0, 1]).call(0, "tp0", 3)
    expected = hang(built.write(tmp_path)).verdict
    built.write(tmp_path, as_json=True)
    packed = tmp_path / "comm_lib_trace_rank_1"
    packed.write_bytes(gzip.compress(packed.read_bytes()))
    assert hang(tmp_path).verdict == expected
    for rank in (0, 1):  # version 2.1: lists of ranks, one number for all calls
        old = built.record(rank)
        old["pg_config"] = {
            "tp0": {"name": "tp0", "desc": "TENSOR_MODEL_PARALLEL_GROUP", "ranks": [0, 1]}
        }
        for entry in old["entries"]:
            entry["seq_id"] = entry.pop("collective_seq_id")
        (tmp_path / f"comm_lib_trace_rank_{rank}").write_bytes(pickle.dumps(old, 4))
    assert hang(tmp_path).verdict == expected


@pytest.mark.parametrize("fault", ["cut", "odd", "endless"])
def test_a_rank_whose_record_is_not_whole_is_not_blamed_for_what_it_may_lack(
    tmp_path: Path, fault: str
) -> None:
    built = RecordBuilder(tp0=[0, 1]).call([0, 1], "tp0", 3)
    if fault == "odd":
        built.entries[1][0]["record_id"] = "x"
    if fault == "endless":
        built.entries[1][0]["time_created_ns"] = float("inf")
    built.write(tmp_path)
    record = tmp_path / "comm_lib_trace_rank_1"
    if fault == "cut":
        whole = record.read_bytes()
        record.write_bytes(whole[: whole.index(b"record_id")])
    answer = hang(tmp_path)
    assert (answer.culprits, answer.damaged) == ((), (record,))
    assert answer.ranks[1].state == "missing"
    ended = CliRunner().invoke(command, [str(tmp_path)])
    assert str(ended.exception) == (f"damaged: {record}; what these ranks wait in may be unknown.")


def test_groups_whose_ranks_are_cut_are_those_that_called(tmp_path: Path) -> None:
    built = RecordBuilder(dp0=[0, 1, 2, 3])
    built.call([0, 1, 2, 3], "dp0", 1, state="completed").call([0, 1, 3], "dp0", 2)
    for rank in range(4):
        record = built.record(rank)
        record["pg_config"]["dp0"]["ranks"] = "[0, ..., 3]"
        (tmp_path / f"trace_{rank}").write_bytes(pickle.dumps(record))
    assert hang(tmp_path).culprits == (2,)


def test_the_record_that_lists_all_ranks_of_a_group_tells_them_for_the_others(
    tmp_path: Path,
) -> None:
    built = RecordBuilder(dp0=[0, 1, 2]).call([0, 1], "dp0", 2)
    for rank in range(2):
        record = built.record(rank)
        if rank == 0:
            record["pg_config"]["dp0"]["ranks"] = "[0, ..., 2]"
        (tmp_path / f"trace_{rank}").write_bytes(pickle.dumps(record))
    answer = hang(tmp_path)
    assert [(one.rank, one.cause.value) for one in answer.blames] == [(2, "no_file")]


def test_a_group_that_a_record_lists_without_a_name_is_named_by_its_calls(tmp_path: Path) -> None:
    built = RecordBuilder(tp0=[0, 1]).call(0, "tp0", 3)
    for rank in range(2):
        record = built.record(rank)
        record["pg_config"] = {"tp0": [0, 1]}  # before version 2.1
        (tmp_path / f"trace_{rank}").write_bytes(pickle.dumps(record))
    assert hang(tmp_path).verdict.endswith("(first in tensor-parallel all_reduce 3).")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("rank_0", b"hello", "neither a pickle nor JSON"),
        ("rank_0", b'{"entries": [', "JSON that is not whole"),
        ("rank_0", b'{"traceEvents": []}', "no flight record: it has no entries"),
        ("rank_0", b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "asks for os.system"),
        ("record", b"{}", "its name does not end in the number of a rank, as"),
    ],
)
def test_what_is_no_record_is_one_sentence(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UsageError, match=f"{name}: {reason}"):
        hang(path)
    with pytest.raises(UsageError, match=r"no flight record .*TORCH_FR_BUFFER_SIZE=2000"):
        hang(tmp_path)


def test_two_records_of_one_rank_are_refused(tmp_path: Path) -> None:
    built = RecordBuilder(tp0=[0, 1]).call(0, "tp0", 3)
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        built.write(tmp_path / name)
    with pytest.raises(UsageError, match="are both of rank 0; name the records of one hang"):
        hang(tmp_path)


@pytest.mark.parametrize(
    ("backend", "cause"), [("gloo", "not_in_a_collective"), ("nccl", "gpu_stuck")]
)
def test_what_torch_has_let_go_of_is_complete_with_gloo_alone(
    tmp_path: Path, backend: str, cause: str
) -> None:
    built = RecordBuilder(dp0=[0, 1])
    built.call(0, "dp0", 8, state="completed").call(0, "dp0", 9)
    built.call(1, "dp0", 8, retired=True, profiling_name=f"{backend}:all_reduce")
    answer = hang(built.write(tmp_path))
    assert [(one.rank, one.cause.value) for one in answer.blames] == [(1, cause)]


def test_of_a_folder_without_a_record_it_is_said_why_the_first_file_is_none(tmp_path: Path) -> None:
    (tmp_path / "comm_lib_trace_rank_0").write_text('{"version": "2.9"}')
    with pytest.raises(UsageError) as caught:
        hang(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}: no flight record (comm_lib_trace_rank_0: it has no entries); set "
        "TORCH_FR_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1 in the launch script."
    )
