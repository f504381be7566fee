# SPDX-License-Identifier: Apache-2.0
"""From the description of a process group to Megatron's parallel dimension."""

from __future__ import annotations

UNKNOWN = "unknown"
DEFAULT = "default"
EMBEDDING = "embedding"

ORDER = ("tp", "pp", "dp", "cp", "ep", "etp", "mp", EMBEDDING, DEFAULT, UNKNOWN)
"""In this order dimensions are listed; ones that are not here come before `default`."""

_SUFFIXES = ("_GLOO", "_WITH_CP", "_WITH_EGTP")

_DIMENSIONS = {
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "TENSOR_AND_CONTEXT_PARALLEL_GROUP": "tp-cp",
    "TENSOR_AND_DATA_PARALLEL_GROUP": "tp-dp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    # All ranks of one model copy: gradient norms and found-inf go over it.
    "MODEL_PARALLEL_GROUP": "mp",
    "DATA_PARALLEL_GROUP": "dp",
    "INTRA_PARTIAL_DATA_PARALLEL_GROUP": "dp",
    "INTER_PARTIAL_DATA_PARALLEL_GROUP": "dp",
    "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP": "dp",
    "INTER_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP": "dp",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "HIERARCHICAL_CONTEXT_PARALLEL_GROUP": "cp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "EXPERT_TENSOR_PARALLEL_GROUP": "etp",
    "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP": "ep",
    "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP": "mp",
    "EXPERT_DATA_PARALLEL_GROUP": "edp",
    "INTRA_EXPERT_DATA_PARALLEL_GROUP": "edp",
    "INTER_EXPERT_DATA_PARALLEL_GROUP": "edp",
    "INTRA_PARTIAL_EXPERT_DATA_PARALLEL_GROUP": "edp",
    "INTER_PARTIAL_EXPERT_DATA_PARALLEL_GROUP": "edp",
    "EMBEDDING_GROUP": EMBEDDING,
    "POSITION_EMBEDDING_GROUP": EMBEDDING,
    "default_pg": DEFAULT,
}


def dimension_of(description: str | None) -> str:
    """`tp`, `pp`, `dp`, `cp`, `ep`, `edp`, `etp`, `mp`, `embedding`, `default`, or `unknown`.

    Megatron's own names, with or without the suffixes that tell variants apart; torch's device
    meshes by the name of the mesh dimension (`mesh_tp`, `mesh_dp_shard`).
    """
    if not description:
        return UNKNOWN
    name = description
    while True:
        if name in _DIMENSIONS:
            return _DIMENSIONS[name]
        suffix = next((s for s in _SUFFIXES if name.endswith(s)), None)
        if suffix is None:
            break
        name = name.removesuffix(suffix)
    if name.startswith("mesh_"):
        part = name.removeprefix("mesh_").split("_")[0]
        return part if part in ("tp", "pp", "dp", "cp", "ep") else UNKNOWN
    if name.startswith("HIERARCHICAL_CONTEXT_PARALLEL_GROUP"):
        return "cp"
    return UNKNOWN


def order_of(dimension: str) -> int:
    """For sorting rows of a table."""
    return ORDER.index(dimension) if dimension in ORDER else ORDER.index("mp")
