# SPDX-License-Identifier: Apache-2.0
"""From the description of a process group to Megatron's parallel dimension."""

from __future__ import annotations

import re

UNKNOWN = "unknown"
IN_GRAPH = "in a CUDA graph"
"""In place of the group of what a graph launched: nothing in a trace tells that group."""
DEFAULT = "default"
EMBEDDING = "embedding"

ORDER = ("tp", "pp", "dp", "cp", "ep", "etp", "mp", EMBEDDING, DEFAULT, UNKNOWN)
"""In this order dimensions are listed; ones that are not here come before `default`."""

_LAST_VARIANT = re.compile(r"_(?:GLOO|WITH_CP|WITH_EGTP|WITH_GTP_REMAT|AG|L\d+)$")
_MESH = re.compile(r"(?:device_)?mesh_", re.IGNORECASE)
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

_MESH_WORDS = {
    **dict.fromkeys(("dp", "fsdp", "hsdp", "ddp", "data", "replicate", "shard", "batch"), "dp"),
    **dict.fromkeys(("tp", "sp", "tensor", "model"), "tp"),
    **dict.fromkeys(("cp", "context", "ulysses", "ring"), "cp"),
    **dict.fromkeys(("pp", "pipeline"), "pp"),
    **dict.fromkeys(("ep", "expert"), "ep"),
    **dict.fromkeys(("edp", "efsdp"), "edp"),
    "etp": "etp",
}
"""Words in the names of mesh dimensions, as torchtitan, Accelerate and others choose them."""

_FILLERS = {"parallel", "group", "pg"}

ADJECTIVES = {
    "tp": "tensor-parallel",
    "pp": "pipeline",
    "dp": "data-parallel",
    "cp": "context-parallel",
    "ep": "expert-parallel",
    "edp": "expert data-parallel",
    "etp": "expert tensor-parallel",
    "tp-cp": "tensor- and context-parallel",
    "tp-dp": "tensor- and data-parallel",
    "gtp": "weight-gathering",
    "mp": "model-parallel",
    "embedding": "embedding",
    "default": "default-group",
}
"""What communication of a dimension is called in a sentence."""


def dimension_of(description: str | None) -> str:
    """`tp`, `pp`, `dp`, `cp`, `ep`, `edp`, `etp`, `gtp`, `mp`, `embedding`, `default`, `unknown`.

    Megatron's own names, with or without what tells variants of a group apart; torch's device
    meshes by the name of the mesh dimension (`mesh_tp`, `mesh_dp_shard_cp`, `fsdp`).
    """
    if not description:
        return UNKNOWN
    mesh = _MESH.match(description)
    if mesh:
        return _of_mesh(_words(description[mesh.end() :]))
    found = _of_megatron(description)
    words = _words(description)
    # A name that somebody gave to a group of his own, if it is one of a mesh dimension throughout.
    if found == UNKNOWN and set(words) <= _MESH_WORDS.keys() | _FILLERS:
        return _of_mesh(words)
    return found


def _of_megatron(description: str) -> str:
    name = description.removeprefix(_LEVELS)
    name = _SIZE.sub("", name)
    while name not in _DIMENSIONS:
        variant = _LAST_VARIANT.search(name)
        if variant is None:
            return UNKNOWN
        name = name[: variant.start()]
    return _DIMENSIONS[name]


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[_\W\d]+", name.lower()) if word]


def _of_mesh(words: list[str]) -> str:
    """The dimension of a mesh dimension; one that is flattened of several goes by the first.

    Sharded data parallelism over `dp_shard_cp` is still data parallelism. `efsdp`, `edp_shard`:
    of the experts' weights.
    """
    return next((_MESH_WORDS[word] for word in words if word in _MESH_WORDS), UNKNOWN)


def is_megatron_group(description: str) -> bool:
    """Whether a process group's description is one that Megatron gives."""
    return _of_megatron(description) not in (UNKNOWN, DEFAULT)


def order_of(dimension: str) -> int:
    """For sorting rows of a table."""
    return ORDER.index(dimension) if dimension in ORDER else ORDER.index("mp")
