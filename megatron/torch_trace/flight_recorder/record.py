# SPDX-License-Identifier: Apache-2.0
"""One rank's flight record: the collectives that it has called, and how far each of them is.

Written by torch's NCCL watchdog (`TORCH_FR_BUFFER_SIZE`, `TORCH_NCCL_DUMP_ON_TIMEOUT`), as a pickle
or as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

COMPLETED = "completed"
LEFT_OUT = -1
"""In place of the call that closes a batch, where the record may have left it out."""


@dataclass(frozen=True, slots=True)
class Group:
    """A process group.

    Args:
        name: torch's number, the same on all ranks.
        description: `TENSOR_MODEL_PARALLEL_GROUP`, as Megatron called it; empty if nobody did.
        ranks: global ranks; empty where the record does not tell.
    """

    name: str
    description: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A collective or a transfer that a rank has called.

    Args:
        order: which call of the rank it is.
        group: name of its process group.
        sequence: number of the collective in its group, the same on all ranks; of a transfer the
            number among the rank's own transfers of the group.
        name: `all_reduce`, `send 0->3`, `recv 0<-3` (ranks within the group).
        sizes: shape of inputs, type, shape of outputs if another: equal on all ranks for most.
        state: torch's word: scheduled, started or completed.
        created: ns since 1970.
        thread: the thread that called; autograd's is `pt_autograd_N`.
        is_transfer: it is a send or a receive.
        peer: global rank at the other end of a transfer; None of a collective, or if unknown.
        stack: `file:line function`, the innermost first; empty where torch did not record it.
        finished: when torch saw that it is complete, ns since 1970; None if it is not, or unknown.
        batch: of a transfer, the order of the call that closed its batch; LEFT_OUT, or None.
    """

    order: int
    group: str
    sequence: int
    name: str
    sizes: str
    state: str
    created: int
    thread: str
    is_transfer: bool
    peer: int | None
    stack: tuple[str, ...]
    finished: int | None = None
    batch: int | None = None

    @property
    def pending(self) -> bool:
        """Whether it is not complete on this rank."""
        return self.state != COMPLETED


@dataclass(frozen=True, slots=True)
class FlightRecord:
    """What one rank has left.

    Args:
        path: the file.
        rank: global rank.
        groups: by name.
        calls: by order; torch keeps the last thousands, or only those that are not complete.
        version: of the format.
        damaged: bytes or entries are missing or make no sense, so what is pending may be more.
        whole: it holds every call from the first one of the process on.
        since: the order from which on it holds every call.
        pending_alone: it leaves out calls that are complete (`TORCH_INCLUDE_ONLY_ACTIVE`).
        overrun: it may lack calls that are pending: newer ones took their place.
        numbers: names of groups by torch's own number of them in this process, where calls tell.
        last_called: by that number, the last collective of the group that was called; torch counts
            transfers there, too.
    """

    path: Path
    rank: int
    groups: dict[str, Group]
    calls: tuple[Call, ...]
    version: str
    damaged: bool = False
    whole: bool = True
    since: int = 0
    pending_alone: bool = False
    overrun: bool = False
    numbers: Mapping[int, str] = field(default_factory=dict)
    last_called: Mapping[int, int] = field(default_factory=dict)

    def pending(self) -> tuple[Call, ...]:
        """Calls that are not complete."""
        return tuple(call for call in self.calls if call.pending)
