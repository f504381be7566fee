# SPDX-License-Identifier: Apache-2.0
"""What memory is for, by who allocated it, who freed it, and whether it stayed."""

from __future__ import annotations

from pathlib import Path

import pytest
from snapshot_builder import MIB, SnapshotBuilder

from megatron.torch_trace.allocator.answer import memory
from megatron.torch_trace.allocator.purpose.categories import Category

FORWARD = "megatron/core/transformer/mlp.py:3 forward"
ENGINE = "torch::autograd::Engine::evaluate_function()"
ADAM = "/site/torch/optim/adam.py:178 _init_group"
BUFFER = "megatron/core/distributed/param_and_grad_buffer.py:5 __init__"
GATHER = "/site/torch/distributed/distributed_c10d.py:9 all_gather_into_tensor"
PARAMETER = "megatron/core/tensor_parallel/layers.py:8 __init__"


@pytest.mark.parametrize(
    ("stack", "freed_by", "category"),
    [
        ([FORWARD], None, Category.ACTIVATIONS),
        ([FORWARD], [ENGINE], Category.ACTIVATIONS),
        ([FORWARD], ["f.py:3 backward"], Category.ACTIVATIONS),
        # With Python stacks alone autograd's thread has none.
        ([FORWARD], [], Category.ACTIVATIONS),
        ([FORWARD], [FORWARD], Category.TEMPORARIES),
        (["f.py:9 backward"], [ENGINE], Category.TEMPORARIES),
        ([ENGINE], None, Category.GRADIENTS),
        # Recomputed in the backward pass.
        ([FORWARD, "checkpoint.py:2 backward"], [ENGINE], Category.TEMPORARIES),
        ([BUFFER], None, Category.GRADIENTS),
        ([ADAM], None, Category.OPTIMIZER_STATE),
        ([ADAM], [ADAM], Category.TEMPORARIES),
        ([GATHER, FORWARD], [ENGINE], Category.COMMUNICATION),
        ([PARAMETER, "training.py:1 get_model"], None, Category.PARAMETERS),
        ([PARAMETER, "training.py:1 get_model"], ["x.py:1 main"], Category.OTHER),
        (["script.py:3 <module>"], None, Category.OTHER),
        ([], None, Category.UNKNOWN),
    ],
)
def test_category(
    tmp_path: Path, stack: list[str], freed_by: list[str] | None, category: Category
) -> None:
    built = SnapshotBuilder()
    address = built.alloc(MIB, *stack)
    if freed_by is not None:
        built.free(address, *freed_by)
    (answer,) = memory(built.write(tmp_path / "snapshot.pickle"))
    assert answer.categories == dict.fromkeys(Category, 0) | {category: MIB}
