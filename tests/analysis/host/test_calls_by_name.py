# SPDX-License-Identifier: Apache-2.0
"""Operators by name and time by stack, of traces built by hand, to the nanosecond.

That torch's own `key_averages()` and `export_stacks()` say the same is in
`tests/torch_profile/export/test_artifacts.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import invoked
from trace_builder import BACKWARD, LOOP, header, instant, kernel, op, text, write

from megatron.torch_trace.analysis.host.call_tree import CallTree, call_tree
from megatron.torch_trace.analysis.host.key_averages import KeyAverage, key_averages
from megatron.torch_trace.analysis.host.stacks import lines, stacks


def cpu(name: str, start: int, end: int, thread: int = LOOP, **args: Any) -> str:
    return op(name, start, end, cat=args.pop("cat", "cpu_op"), tid=thread, args=args)


def operator(name: str, start: int, end: int, number: int, **more: Any) -> str:
    return cpu(name, start, end, **{"External id": number}, **more)


def python(name: str, start: int, end: int) -> str:
    return cpu(name, start, end, cat="python_function")


def taken(at: int, size: int, device: int = 0) -> str:
    args = {"Bytes": size, "Device Type": device}
    return instant("[memory]", at, cat="cpu_instant_event", args=args)


def written(folder: Path, *events: str) -> Path:
    return write(folder / "trace.json", text(*events, header=header()))


def tree(folder: Path, *events: str) -> CallTree:
    return call_tree(written(folder, *events))


def test_time_of_its_own_is_without_the_slices_inside(tmp_path: Path) -> None:
    found = key_averages(
        tree(
            tmp_path,
            cpu("ProfilerStep#4", 0, 100_000, cat="user_annotation"),
            operator("aten::linear", 10_000, 50_000, 1),
            operator("aten::addmm", 20_250, 45_000, 2),
            cpu("cudaLaunchKernel", 30_000, 33_000, cat="cuda_runtime"),
            cpu("ProfilerStep#5", 100_000, 200_000, cat="user_annotation"),
            operator("aten::addmm", 120_000, 121_000, 3),
        )
    )
    assert found == (
        KeyAverage("ProfilerStep*", False, True, 2, cpu_ns=200_000, self_cpu_ns=159_000),
        KeyAverage("aten::addmm", False, False, 2, cpu_ns=25_750, self_cpu_ns=22_750),
        KeyAverage("aten::linear", False, False, 1, cpu_ns=40_000, self_cpu_ns=15_250),
        KeyAverage("cudaLaunchKernel", False, False, 1, cpu_ns=3_000, self_cpu_ns=3_000),
    )


def test_gpu_work_belongs_to_the_operator_with_its_external_id(tmp_path: Path) -> None:
    found = key_averages(
        tree(
            tmp_path,
            operator("aten::linear", 10_000, 50_000, 1),
            operator("aten::addmm", 20_000, 45_000, 2),
            kernel("gemm", 60_000, 67_500, 2, external=2),
            kernel("gemm", 70_000, 71_000, 2, external=2),
            kernel("copy", 80_000, 90_000, 1, external=1),
            kernel("of nobody", 95_000, 99_000, 77, external=77),
        )
    )
    assert [(row.name, row.on_gpu, row.calls, row.gpu_ns, row.self_gpu_ns) for row in found] == [
        ("aten::linear", False, 1, 18_500, 10_000),
        ("copy", True, 1, 10_000, 10_000),
        ("aten::addmm", False, 1, 8_500, 8_500),
        ("gemm", True, 2, 8_500, 8_500),
        ("of nobody", True, 1, 4_000, 4_000),
    ]


def test_what_is_the_only_thing_in_a_slice_of_its_name_is_that_slice(tmp_path: Path) -> None:
    found = key_averages(
        tree(
            tmp_path,
            operator("aten::add", 0, 50_000, 1),
            operator("aten::add", 10_000, 40_000, 2),
            operator("aten::mul", 20_000, 30_000, 3),
            kernel("add", 60_000, 65_000, 2, external=2),
        )
    )
    assert {row.name: (row.calls, row.self_cpu_ns, row.gpu_ns) for row in found} == {
        "aten::add": (1, 40_000, 5_000),
        "add": (1, 0, 5_000),
        "aten::mul": (1, 10_000, 0),
    }


def test_python_functions_are_no_rows_and_what_torch_leaves_out_is_left_out(
    tmp_path: Path,
) -> None:
    found = key_averages(
        tree(
            tmp_path,
            cpu("forward", 0, 100_000, cat="user_annotation"),
            python("model.py(3): forward", 10_000, 90_000),
            operator("aten::mm", 20_000, 30_000, 1),
            operator("aten::is_leaf", 40_000, 45_000, 2),
        )
    )
    assert [(row.name, row.self_cpu_ns) for row in found] == [
        ("forward", 20_000),
        ("aten::mm", 10_000),
    ]


def test_memory_is_what_was_taken_less_what_was_given_back_meanwhile(tmp_path: Path) -> None:
    found = key_averages(
        tree(
            tmp_path,
            operator("aten::linear", 10_000, 50_000, 1),
            taken(12_000, 100),
            operator("aten::empty", 20_000, 30_000, 2),
            taken(25_000, 4096),
            taken(26_000, 1 << 20, device=1),
            taken(40_000, -100),
            taken(70_000, -4096),
        )
    )
    assert {
        row.name: (row.cpu_bytes, row.self_cpu_bytes, row.gpu_bytes, row.self_gpu_bytes)
        for row in found
    } == {
        "aten::linear": (4096, 0, 1 << 20, 0),
        "aten::empty": (4096, 4096, 1 << 20, 1 << 20),
        "[memory]": (-4096, -4096, 0, 0),
    }


def test_threads_do_not_enclose_each_other(tmp_path: Path) -> None:
    found = key_averages(
        tree(tmp_path, cpu("aten::a", 0, 100_000), cpu("aten::b", 10_000, 20_000, thread=BACKWARD))
    )
    assert {row.name: row.self_cpu_ns for row in found} == {"aten::a": 100_000, "aten::b": 10_000}


def forward_and_backward() -> list[str]:
    node = {"Sequence number": 5, "Fwd thread id": 1}
    engine = "autograd::engine::evaluate_function: "
    return [
        python("train.py(1): <module>", 0, 100_000),
        python("model.py(3): forward", 10_000, 60_000),
        operator("aten::mm", 20_000, 40_000, 1, **{"Sequence number": 5, "Fwd thread id": 0}),
        kernel("forward gemm", 50_000, 57_000, 1, external=1),
        cpu(f"{engine}MmBackward0", 70_000, 90_000, BACKWARD, **node),
        operator("MmBackward0", 72_000, 88_000, 2, thread=BACKWARD, **node),
        operator("aten::mm", 75_000, 85_000, 3, thread=BACKWARD),
        kernel("backward gemm", 90_000, 93_000, 3, external=3),
        cpu(f"{engine}torch::autograd::AccumulateGrad", 90_000, 95_000, BACKWARD),
        cpu("torch::autograd::AccumulateGrad", 91_000, 94_000, BACKWARD),
    ]


def test_time_by_stack_and_the_backward_pass_at_what_made_its_node(tmp_path: Path) -> None:
    made = tree(tmp_path, *forward_and_backward())
    outer, inner = "train.py(1):_<module>", "train.py(1):_<module>;model.py(3):_forward"
    # Time of forward itself: 30; of aten::mm 20; of the node and what it runs 16.
    assert stacks(made, gpu=False) == {outer: 30_000, inner: 36_000}
    assert stacks(made, gpu=True) == {inner: 10_000}
    assert list(lines(stacks(made, gpu=True))) == [f"{inner} 10"]


def test_stacks_are_one_line_each_and_separators_are_no_part_of_a_name(tmp_path: Path) -> None:
    made = tree(
        tmp_path,
        python("a b;c\td", 0, 100_000),
        operator("aten::mm", 20_000, 40_000, 1),
        operator("aten::mm", 50_000, 60_900, 2),
        operator("aten::mm", 70_000, 70_500, 3),
    )
    assert list(lines(stacks(made, gpu=False))) == ["a_b_c_d 31"]


def run(*arguments: object) -> tuple[int, str]:
    result = invoked(*arguments)
    return result.exit_code, f"{result.output}{result.exception or ''}"


def test_the_table_is_torchs(tmp_path: Path) -> None:
    path = written(tmp_path, *forward_and_backward(), cpu("f\x1b[31m", 96_000, 97_000, BACKWARD))
    status, said = run("operators", path, "--sort", "calls", "--limit", 2)
    assert status == 0
    gap, dash = "  ", "-" * 12
    # The longest name, which is not shown, is longer than 55 characters.
    line = gap.join(["-" * 55, *[dash] * 10])
    cells = [
        ("Name", "Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg", "Self CUDA",
         "Self CUDA %", "CUDA total", "CUDA time avg", "# of Calls"),
        ("aten::mm", "65.22%", "30.000us", "65.22%", "30.000us", "15.000us", "10.000us", "100.00%",
         "10.000us", "5.000us", "2"),
        ("forward gemm", "0.00%", "0.000us", "0.00%", "0.000us", "0.000us", "7.000us", "70.00%",
         "7.000us", "7.000us", "1"),
    ]  # fmt: skip
    head, *rows = (gap.join(c.rjust(55 if n == 0 else 12) for n, c in enumerate(r)) for r in cells)
    sums = ["Self CPU time total: 46.000us", "Self CUDA time total: 10.000us"]
    said_lines = said.splitlines()
    assert said_lines == [line, head, line, *rows, line, *sums]
    assert "\x1b" not in run("operators", path)[1]


def test_json_has_nanoseconds(tmp_path: Path) -> None:
    path = written(tmp_path, operator("aten::mm", 20_000, 40_125, 1))
    status, said = run("operators", path, "--json")
    (row,) = json.loads(said)["operators"]
    assert (status, row["name"], row["cpu_ns"]) == (0, "aten::mm", 20_125)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["stacks"], "holds no Python functions; record with --torch-profile-with-stack"),
        (["operators"], "holds no operators and no GPU work."),
    ],
)
def test_a_trace_without_any_is_one_sentence(
    tmp_path: Path, command: list[str], words: str
) -> None:
    status, said = run(*command, written(tmp_path, instant("else", 3_000)))
    assert (status, words in said) == (1, True), said  # 2 at the command line


def test_gpu_time_of_a_trace_without_gpu_work_is_one_sentence(tmp_path: Path) -> None:
    path = written(tmp_path, python("f", 0, 9_000), cpu("aten::mm", 1_000, 4_000))
    assert "--time gpu: the trace holds no GPU work" in run("stacks", path, "--time", "gpu")[1]
    assert run("stacks", path) == (0, "f 3\n")


def test_a_damaged_trace_is_answered_as_far_as_it_goes(tmp_path: Path) -> None:
    path = written(tmp_path, *forward_and_backward())
    path.write_text(path.read_text()[:-60])
    status, said = run("operators", path)
    assert status == 1, "3 at the command line"
    assert "aten::mm" in said
    assert "DamagedTraceError" not in said
