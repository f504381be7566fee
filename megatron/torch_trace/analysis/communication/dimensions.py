# SPDX-License-Identifier: Apache-2.0
"""From the description of a process group to Megatron's parallel dimension."""

from __future__ import annotations

import re

UNKNOWN = "unknown"
DEFAULT = "default"
EMBEDDING = "embedding"

ORDER = ("tp", "pp", "dp", "cp", "ep", "etp", "mp", EMBEDDING, DEFAULT, UNKNOWN)
"""In this order dimensions are listed; ones that are not here come before `default`."""

_LAST_VARIANT = re.compile(r"_(?:GLOO|WITH_CP|WITH_EGTP|WITH_GTP_REMAT|AG|L\d+)$")
_SIZE = re.compile(r"(?<=_GROUP)_\d+$")
_LEVELS = "HIERARCHICAL_"

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
    # Context parallelism whose size depends on the sequences, `..._GROUP_4`.
    "HYBRID_DP_CP_GROUP": "cp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "EXPERT_TENSOR_PARALLEL_GROUP": "etp",
    "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP": "ep",
    "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP": "mp",
    "EXPERT_DATA_PARALLEL_GROUP": "edp",
    "INTRA_EXPERT_DATA_PARALLEL_GROUP": "edp",
    "INTER_EXPERT_DATA_PARALLEL_GROUP": "edp",
    "INTRA_PARTIAL_EXPERT_DATA_PARALLEL_GROUP": "edp",
    "INTER_PARTIAL_EXPERT_DATA_PARALLEL_GROUP": "edp",
    # Weights are sharded, and gathered for each use.
    "GTP_WEIGHT_REMAT_GROUP": "gtp",
    "EXPERT_GTP_WEIGHT_REMAT_GROUP": "gtp",
    "EMBEDDING_GROUP": EMBEDDING,
    "POSITION_EMBEDDING_GROUP": EMBEDDING,
    "default_pg": DEFAULT,
}


def dimension_of(description: str | None) -> str:
    """`tp`, `pp`, `dp`, `cp`, `ep`, `edp`, `etp`, `gtp`, `mp`, `embedding`, `default`, `unknown`.

    Megatron's own names, with or without what tells variants of a group apart; torch's device
    meshes by the name of the mesh dimension (`mesh_tp`, `mesh_dp_shard`).
    """
    if not description:
        return UNKNOWN
    if description.startswith("mesh_"):
        part = description.removeprefix("mesh_").split("_")[0]
        return part if part in ("tp", "pp", "dp", "cp", "ep") else UNKNOWN
    name = description.removeprefix(_LEVELS)
    name = _SIZE.sub("", name)
    while name not in _DIMENSIONS:
        variant = _LAST_VARIANT.search(name)
        if variant is None:
            return UNKNOWN
        name = name[: variant.start()]
    return _DIMENSIONS[name]


def order_of(dimension: str) -> int:
    """For sorting rows of a table."""
    return ORDER.index(dimension) if dimension in ORDER else ORDER.index("mp")
