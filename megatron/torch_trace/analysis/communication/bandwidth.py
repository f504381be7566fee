# SPDX-License-Identifier: Apache-2.0
"""Bytes and bandwidth of collectives, as nccl-tests defines them.

S is the whole buffer: what a rank puts in; for all-gather and gather what it gets out. Of sends and
receives in one kernel, which pass each other, it is the larger of what goes out and what comes in.

    algbw = S / t        busbw = algbw x factor        in GB/s = 10^9 bytes a second = bytes a ns

    all-reduce 2(n-1)/n; broadcast, reduce, send and receive 1
    all-gather, reduce-scatter, all-to-all, gather, scatter (n-1)/n

Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md and the GetBw function of each test.
"""

from __future__ import annotations

from megatron.torch_trace.analysis.timeline.activity import Collective

_DTYPE_BYTES = {
    "byte": 1,
    "char": 1,
    "bool": 1,
    "short": 2,
    "half": 2,
    "bfloat16": 2,
    "int": 4,
    "float": 4,
    "long": 8,
    "double": 8,
    "complexhalf": 4,
    "complexfloat": 8,
    "complexdouble": 16,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
}
_OWN_SHARE_STAYS = frozenset({"allgather", "reduce_scatter", "all_to_all", "gather", "scatter"})
_WHOLE_COMES_OUT = frozenset({"allgather", "gather", "recv"})


def dtype_bytes(dtype: str | None) -> int | None:
    """Bytes of one element by torch's name of the type; None if it is not known."""
    if not dtype:
        return None
    folded = dtype.lower()
    if folded.startswith("float8"):
        return 1
    return _DTYPE_BYTES.get(folded)


def message_bytes(collective: Collective, operation: str) -> int | None:
    """S of one call in bytes; None if elements or type are unknown.

    Args:
        collective: what torch wrote of the call.
        operation: its canonical name, such as `allreduce`, which says what S is of.

    Source: docs/computed.md, "Communication".
    """
    size = dtype_bytes(collective.dtype)
    in_, out = collective.in_nelems, collective.out_nelems
    elements = out if operation in _WHOLE_COMES_OUT else in_
    if not elements:
        elements = in_ or out
    if size is None or elements is None:
        return None
    return elements * size


def bus_factor(operation: str, group_size: int | None) -> float | None:
    """busbw / algbw, a ratio; None if it needs the size of the group and that is unknown.

    Args:
        operation: canonical name of the collective, such as `allreduce`.
        group_size: ranks of the process group.

    Source: nccl-tests, doc/PERFORMANCE.md; docs/computed.md, "Communication".
    """
    if operation == "allreduce":
        return 2 * (group_size - 1) / group_size if group_size else None
    if operation in _OWN_SHARE_STAYS:
        return (group_size - 1) / group_size if group_size else None
    return 1.0
