# SPDX-License-Identifier: Apache-2.0
"""Runs whose memory follows a formula, and the answers of `torch-trace memory --fit` on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from command_line import invoked
from snapshot_builder import MIB, SnapshotBuilder, block

LAYER = "core/transformer/transformer_layer.py:667 _forward_attention"
CORE = ("core/transformer/dot_product_attention.py:218 forward", LAYER)
MLP = ("core/transformer/mlp.py:99 forward", LAYER)
LOSS = ("core/models/gpt/gpt_model.py:597 forward",)
BACKWARD = ("mlp.py:8 backward",)
BUFFER = ("core/distributed/param_and_grad_buffer.py:700 __init__",)
MODEL = ("model.py:3 __init__", "train.py:9 model_provider")
ADAM = ("/site/torch/optim/adam.py:178 _init_group", "core/optimizer/optimizer.py:3 step")

SIZES = {"seq_length": 1024, "hidden_size": 1024, "num_attention_heads": 16, "num_layers": 4}
"""sbh is 1 MiB for a micro-batch of 1; 5as^2b is 80 MiB, 34sbh is 34 MiB."""
USUAL: dict[str, Any] = {
    **SIZES,
    "micro_batch_size": 1,
    "global_batch_size": 32,
    "ffn_hidden_size": 4096,
    "padded_vocab_size": 32768,
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "context_parallel_size": 1,
    "data_parallel_size": 4,
    "sequence_parallel": False,
    "use_distributed_optimizer": False,
    "swiglu": False,
    "recompute_granularity": None,
}


def process(
    *,
    batch: int = 1,
    in_flight: int = 1,
    layers: int = 4,
    core: int = 80,
    linear: int = 34,
    marks: bool = False,
    turns: bool = False,
    optimizer: int = 960,
) -> SnapshotBuilder:
    """One rank: state in MiB that stays, then micro-batches in flight, then all of them freed.

    Args:
        batch: size of a micro-batch.
        in_flight: micro-batches that the stage keeps.
        layers: of the stage.
        core: MiB of a layer's core attention.
        linear: MiB of the rest of a layer.
        marks: spans of micro-batches are in the history.
        turns: these are the turns that a forward and a backward take.
        optimizer: MiB of its state.
    """
    built = SnapshotBuilder()
    built.alloc(160 * MIB, *MODEL)
    built.alloc(320 * MIB, *BUFFER)
    built.alloc(optimizer * MIB, *ADAM)
    held = []
    time = 2_000_000
    for number in range(in_flight):
        if turns:
            for turn in range(3):
                start = time - 3 + turn
                built.annotation(f"forward micro-batch {number} (steady), part", start, start + 1)
        elif marks:
            built.annotation(f"forward micro-batch {number}", time - 1, time + 50)
        for _ in range(layers):
            for size, stack in ((core, CORE), (linear, MLP)):
                if size:
                    held.append(built.alloc(size * batch * MIB, *stack, time_us=time))
                    time += 1
        time += 100
    held.append(built.alloc(64 * batch * MIB, *LOSS, time_us=time))
    for address in reversed(held):
        time += 1
        built.free(address, *BACKWARD, time_us=time)
    for number in range(in_flight):
        if turns:
            for start in (time - 1, time + 5):
                name = f"backward micro-batch {number} (cooldown), part"
                built.annotation(name, start, start + 1)
        elif marks:
            built.annotation(f"backward micro-batch {number}", time, time + 10)
    peak = sum(one["size"] for one in built.traces[0] if one["action"] == "alloc")
    built.segment(block(peak - (480 + optimizer) * MIB, state="inactive"), block(512))
    return built


def run_of(folder: Path, *ranks: SnapshotBuilder, **arguments: Any) -> Path:
    """A run's folder with a snapshot of each stage."""
    window = folder / "iter-0000005" / "artifacts"
    window.mkdir(parents=True)
    for number, built in enumerate(ranks):
        built.write(window / f"rank-{number}.memory_snapshot.pickle")
    members = [{"rank": one, "coordinates": {"tp": 0, "pp": one}} for one in range(len(ranks))]
    document = {"arguments": USUAL | arguments, "ranks": members, "layout": {}}
    (folder / "run.json").write_text(json.dumps(document))
    return folder


def fit(*arguments: object) -> dict[str, Any]:
    found = json.loads(invoked("memory", *arguments, "--fit", "--json").stdout)
    return found["fit"]  # type: ignore[no-any-return]


def effects(found: dict[str, Any]) -> dict[str, tuple[int | None, int | None]]:
    return {
        one["change"].split()[0] + (" full" if "granularity" in one["change"] else ""): (
            one["frees_bytes"] and one["frees_bytes"] // MIB,
            one["error_bytes"] and one["error_bytes"] // MIB,
        )
        for one in found["effects"]
    }
