# SPDX-License-Identifier: Apache-2.0
"""Modules of two runs in one icicle: coloured is what is sure, and unknown is no zero."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import invoked
from run_pairs import compared, told
from trace_builder import GEMM, TraceBuilder

from megatron.torch_trace.report.comparison.module_changes import module_changes

MS = 1_000_000
HOSTILE = "<img src=x onerror=alert(1)>"


def window(
    folder: Path,
    modules: dict[str, float],
    *,
    ranks: tuple[int, ...] = (0, 1),
    around: str = "",
    stages: bool = False,
) -> Path:
    """Ranks with a kernel of so many ms in each module, on rank 1 a little longer.

    Args:
        modules: path -> ms.
        around: a module in which all the others are.
        stages: each rank is a stage of the pipeline.
    """
    for rank in ranks:
        own = {"coordinates": {"pp": rank}} if stages else None
        trace = TraceBuilder(rank, 4, own=own).step(1, 0, 100 * MS)
        if around:
            trace.annotation(f"{around}: Part", 0, MS)
        at = MS
        for number, (path, length) in enumerate(modules.items()):
            begin, end = 1000 * (number + 1), at + round((length + 0.01 * rank) * MS)
            trace.annotation(f"{path}: Part", begin, begin + 500)
            trace.gpu(GEMM, at, end, launch=begin + 100)
            at = end
        trace.write(folder / f"rank-{rank}.json")
    return folder


def drawn(a: Path, b: Path) -> dict[str, tuple[str, str]]:
    return told(module_changes(compared(a, b).module_tree))


def test_what_is_sure_is_coloured_and_what_is_new_or_gone_is_named(tmp_path: Path) -> None:
    a = window(tmp_path / "a", {"embedding": 4, "mlp": 8, "norm": 2, "old": 3})
    b = window(tmp_path / "b", {"embedding": 4, "mlp": 10, "norm": 1, "fused": 5})
    assert drawn(a, b) == {
        "embedding": ("", "embedding"),
        "mlp": ("longer", "mlp +2.00 ms"),
        "norm": ("shorter", "norm -1.00 ms"),
        "old": ("gone", "old (gone)"),
        "fused": ("new", "fused (new)"),
    }


def test_layers_are_one_and_each_part_lies_within_the_one_above(tmp_path: Path) -> None:
    layers = {f"decoder.layers.{n}": 2.0 for n in range(4)}
    a = window(tmp_path / "a", layers, around="decoder")
    b = window(tmp_path / "b", layers | {"decoder.layers.1": 3.0, "decoder.norm": 1.0},
               around="decoder")  # fmt: skip
    figure = module_changes(compared(a, b).module_tree)
    assert figure is not None
    assert [(one.depth, one.label) for one in figure.parts] == [
        (0, "decoder +2.00 ms"),
        (1, "layers.* +1.00 ms"),
        (1, "norm (new)"),
    ]
    decoder, *below = figure.parts
    assert sum(one.width for one in below) == pytest.approx(decoder.width, abs=0.02)
    assert below[1].left == pytest.approx(below[0].left + below[0].width, abs=0.02)


def test_without_a_second_rank_nothing_is_sure(tmp_path: Path) -> None:
    a = window(tmp_path / "a", {"mlp": 8}, ranks=(0,))
    b = window(tmp_path / "b", {"mlp": 10}, ranks=(0,))
    figure = module_changes(compared(a, b).module_tree)
    assert figure is not None
    assert figure.untested
    (part,) = figure.parts
    assert (part.kind, part.label) == ("", "mlp")
    assert part.told == "mlp: 8 ms -> 10 ms an iteration, +2.00 ms, +25 %, not tested"


def test_what_the_other_side_did_not_record_is_neither_new_nor_gone(tmp_path: Path) -> None:
    a = window(tmp_path / "a", {"mlp": 8}, ranks=(0,), stages=True)
    b = window(tmp_path / "b", {"mlp": 8, "output_layer": 4}, stages=True)
    assert drawn(a, b)["output_layer"] == ("elsewhere", "output_layer")
    assert drawn(b, a)["output_layer"] == ("elsewhere", "output_layer")


def test_a_side_without_modules_gives_a_sentence_and_no_figure(tmp_path: Path) -> None:
    a = window(tmp_path / "a", {})
    TraceBuilder(0, 4).step(1, 0, 100 * MS).gpu(GEMM, MS, 2 * MS, launch=100).write(
        tmp_path / "a" / "rank-0.json"
    )
    b = window(tmp_path / "b", {"mlp": 8})
    found = compared(a, b)
    assert found.module_tree == ()
    assert found.unknown_modules == (
        "The modules of A are unknown: its traces have neither spans of modules "
        "(--torch-profile-spans modules) nor stacks."
    )
    output = tmp_path / "compare.html"
    assert invoked("compare", a, b, "-o", output, "--jobs", "1").exit_code == 0
    assert 'id="module-changes"' not in output.read_text()
    assert "The modules of A are unknown" in output.read_text()


def test_the_figure_draws_the_numbers_of_json_and_hostile_names_as_text(tmp_path: Path) -> None:
    a = window(tmp_path / "a", {"mlp": 8, HOSTILE: 4})
    b = window(tmp_path / "b", {"mlp": 10, HOSTILE: 4})
    output = tmp_path / "compare.html"
    assert invoked("compare", a, b, "-o", output, "--jobs", "1").exit_code == 0
    page = output.read_text()
    assert "<img" not in page
    rows = json.loads(invoked("compare", a, b, "--json", "--jobs", "1").output)["module_tree"]
    whole = sum(max(row["time"]["before"], row["time"]["after"]) for row in rows)
    mlp = next(row for row in rows if row["path"] == "mlp")
    assert mlp["presence"] == "both"
    assert mlp["time"]["change"] == 2 * MS
    width = round(100 * mlp["time"]["after"] / whole, 2)
    assert f'<i class="change-longer" style="left:0.0%;width:{width}%;top:0px"' in page
