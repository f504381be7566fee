# SPDX-License-Identifier: Apache-2.0
"""Whether a module that only one side has is new, gone, or on ranks that were not recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from trace_builder import GEMM, TraceBuilder

from megatron.torch_trace.analysis.compare.module_tree import module_tree, unknown_modules
from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.analysis.run.analyse import analyze

MS = 1_000_000


def recorded(folder: Path, *modules: str) -> Analysis:
    """One rank with a kernel of 1 ms in each of these modules."""
    trace = TraceBuilder(0, 1).step(1, 0, 100 * MS)
    for number, module in enumerate(modules):
        begin = 1000 * (number + 1)
        trace.annotation(f"{module}: Part", begin, begin + 500)
        trace.gpu(GEMM, (number + 1) * MS, (number + 2) * MS, launch=begin + 100)
    return analyze(trace.write(folder / "rank-0.json"), jobs=1)


def of_ranks(analysis: Analysis, *ranks: int, world: int, **more: Any) -> Analysis:
    """The same on these ranks; by `stages` in these of the pipeline."""
    stages = more.get("stages", [None] * len(ranks))
    results = [
        replace(
            analysis.ranks[0],
            rank=rank,
            world_size=world,
            coordinates={} if stage is None else {"pp": stage},
        )
        for rank, stage in zip(ranks, stages, strict=True)
    ]
    return replace(analysis, ranks=tuple(results))


@pytest.mark.parametrize(
    ("one", "other", "is_known"),
    [
        ({"ranks": (0,), "world": 4}, {"ranks": (0,), "world": 8}, True),
        ({"ranks": (0, 1), "world": 2}, {"ranks": (0, 1, 2, 3), "world": 4}, True),
        ({"ranks": (0, 1), "world": 4}, {"ranks": (0, 1, 2, 3), "world": 4}, False),
        ({"ranks": (0,), "world": 4}, {"ranks": (1,), "world": 4}, False),
        ({"ranks": (0,), "world": 4, "stages": [1]}, {"ranks": (1,), "world": 4, "stages": [1]},
         True),
        ({"ranks": (0,), "world": 4, "stages": [0]}, {"ranks": (1,), "world": 4, "stages": [1]},
         False),
    ],
)  # fmt: skip
def test_what_one_side_lacks_is_gone_if_it_recorded_the_ranks_that_would_have_it(
    one: dict[str, Any], other: dict[str, Any], is_known: bool, tmp_path: Path
) -> None:
    a, b = recorded(tmp_path / "a", "mlp", "old"), recorded(tmp_path / "b", "mlp", "fused")
    a, b = of_ranks(a, *one.pop("ranks"), **one), of_ranks(b, *other.pop("ranks"), **other)
    presences = {row.path: row.presence for row in module_tree(a, b)}
    assert presences == {
        "mlp": "both",
        "old": "gone" if is_known else None,
        "fused": "new" if is_known else None,
    }


def test_modules_by_other_means_and_of_unknown_work_are_not_compared(tmp_path: Path) -> None:
    a = recorded(tmp_path / "a", "mlp")
    (rank,) = a.ranks
    assert rank.module_account is not None
    by_stacks = replace(rank, module_account=replace(rank.module_account, source="stacks"))
    b = replace(a, ranks=(by_stacks,))
    assert unknown_modules(a, b) == (
        f"Modules cannot be compared: those of A are named by {rank.module_account.source}, those "
        "of B by stacks."
    )
    blind = replace(a, ranks=(replace(rank, unknown="no kernels"),))
    assert unknown_modules(a, blind) == (
        "The GPU work of the modules of B is unknown, as its utilisation is."
    )
    bare = replace(a, ranks=(replace(rank, module_account=None, modules=()),))
    assert unknown_modules(bare, a) == (
        "The modules of A are unknown: its traces have neither spans of modules "
        "(--torch-profile-spans modules) nor stacks."
    )
    assert unknown_modules(bare, bare) is None
    assert module_tree(bare, a) == module_tree(a, b) == ()
