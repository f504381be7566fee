# SPDX-License-Identifier: Apache-2.0
"""Names of communication: kernels that move data between ranks, and the ranges around their launch.

The one table of them; every command decides by it what communicates. Names are untrusted and long;
every pattern is searched in the folded name.
"""

from __future__ import annotations

import re
from functools import lru_cache

UNKNOWN_COLLECTIVE = "unknown"

_KERNELS = {
    "NCCL and its kin": r"^(?:void )?(?:nccl|rccl|hccl|xccl|mscclpp|oneccl)|nccl(?:dev)?kernel",
    "oneCCL": r"\boneapi::ccl\b|oneccl_",
    "NVSHMEM's own kernels": r"nvshmem",
    "DeepEP": r"deep_?ep::|internode::(?:dispatch|combine|notify)|intranode::(?:dispatch|combine)",
    # Its scan only counts tokens.
    "Hybrid EP": r"hybrid_ep::(?:dispatch|combine|device_sync)",
    "torch's symmetric memory": r"multimem_(?:all|one_shot|reduce|gather)"
    r"|(?:one|two)_shot_all_?_?reduce|symm_mem.*(?:all_gather|all_reduce|reduce_scatter)",
    "vLLM's one-shot all-reduce": r"cross_device_reduce",
    "Transformer Engine's user buffers, TensorRT-LLM": r"userbuffers_|tensorrt_llm.*allreduce",
}
_COMMUNICATION = re.compile("|".join(_KERNELS.values()))

_COLLECTIVES = (
    ("allreduce", re.compile(r"all_?_?reduce|cross_device_reduce")),
    ("reduce_scatter", re.compile(r"reduce_?scatter")),
    ("allgather", re.compile(r"all_?gather")),
    ("all_to_all", re.compile(r"all_?to_?all|dispatch|combine")),
    ("send_recv", re.compile(r"send_?recv")),
    ("broadcast", re.compile(r"broadcast")),
    ("reduce", re.compile(r"reduce")),
)

_RANGE = re.compile(r"(?:nccl\w*|rccl|hccl|xccl|ucc|gloo):(?!:)", re.IGNORECASE)
"""torch's ranges around calls of a backend: `nccl:all_reduce`, of the newer one `nccl2:...`."""
_COALESCED = "coalesced"


@lru_cache(maxsize=1 << 16)
def is_communication(name: str) -> bool:
    """Whether a kernel by this name moves data between ranks."""
    return _COMMUNICATION.search(name.lower()) is not None


@lru_cache(maxsize=1 << 16)
def collective_of(name: str) -> str:
    """The collective that a kernel's name, or a range's, tells; else `unknown`.

    RCCL calls every kernel `ncclDevKernel_Generic`.
    """
    folded = _RANGE.sub("", name.lower(), count=1).replace("(anonymous namespace)::", "")
    # Behind the name come the arguments.
    folded = folded.split("(")[0]
    for collective, pattern in _COLLECTIVES:
        if pattern.search(folded):
            return collective
    return UNKNOWN_COLLECTIVE


def is_range(name: str) -> bool:
    """Whether this is a range of torch's around a call of a communication backend."""
    return _RANGE.match(name) is not None


def is_coalesced_range(name: str) -> bool:
    """Whether it is around several calls that become one kernel: `nccl:coalesced`."""
    match = _RANGE.match(name)
    return match is not None and name[match.end() :] == _COALESCED
