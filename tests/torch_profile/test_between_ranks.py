# SPDX-License-Identifier: Apache-2.0
"""What ranks do together, by the source: two modules talk to other ranks, at two points.

Both points are reached by every rank, whoever is profiled: `agree` before training, and `_tick` at
an iteration that Megatron logs. Anything else could make a rank wait for peers that never come.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import megatron.torch_profile

CAPTURE = Path(megatron.torch_profile.__file__).parent
COLLECTIVES = {
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather_object",
    "monitored_barrier",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter_object_list",
    "send",
}
OURS = {
    "topology.discover",
    "topology.gather",
    "topology.from_rank_0",
    "across_ranks.gather",
}


def calls() -> Iterator[tuple[str, str, str]]:
    """Module, function and what is called in it: `a.b` of `x.a.b()`, or the name."""
    for file in sorted(CAPTURE.rglob("*.py")):
        functions = [n for n in ast.walk(ast.parse(file.read_text())) if hasattr(n, "args")]
        for function in functions:
            if not isinstance(function, ast.FunctionDef):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Call):
                    yield file.stem, function.name, ".".join(ast.unparse(node.func).split(".")[-2:])


def test_two_modules_talk_to_other_ranks() -> None:
    talking = {
        (module, function)
        for module, function, called in calls()
        if called.startswith("distributed.") and called.partition(".")[2] in COLLECTIVES
    }
    assert talking == {
        ("topology", "gather"),
        ("topology", "from_rank_0"),
        ("across_ranks", "gather"),
    }


def test_all_ranks_come_to_where_they_are_asked() -> None:
    asking = {(module, function) for module, function, called in calls() if called in OURS}
    assert asking == {("capture_plan", "agree"), ("run_metrics", "_tick")}
