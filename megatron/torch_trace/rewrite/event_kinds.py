# SPDX-License-Identifier: Apache-2.0
"""Kinds of events: all of one phase and category, decided on together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from megatron.torch_trace.columns.codes import coded as coded
from megatron.torch_trace.format.categories import (
    ANNOTATIONS,
    FLOW_PHASES,
    GPU_WORK,
    LAUNCHES,
    category,
)
from megatron.torch_trace.rewrite.category_totals import Account, count
from megatron.torch_trace.rewrite.selection import Selection

Value = TypeVar("Value")


class Kind(NamedTuple):
    """All events of one phase and category.

    Args:
        name: present name of the category, or `metadata`.
        kept: whether a selection wants such events at all.
    """

    name: str
    kept: bool
    is_slice: bool = False
    is_metadata: bool = False
    is_gpu: bool = False
    is_launch: bool = False
    is_on_cpu: bool = False
    is_annotation: bool = False
    is_flow: bool = False


class KindTable:
    """What a selection makes of each kind, found out once."""

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self._kinds: dict[str, Kind] = {}

    def kind(self, key: str) -> Kind:
        """The kind of events with this phase and category, which a zero byte separates."""
        kind = self._kinds.get(key)
        if kind is None:
            phase, _, written = key.partition("\0")
            kind = self._new(phase, written)
            if len(self._kinds) < 10_000:
                self._kinds[key] = kind
        return kind

    def _new(self, phase: str, written: str) -> Kind:
        name, selection = category(written), self.selection
        if phase == "X":
            return Kind(
                name,
                selection.keeps_category(name),
                is_slice=True,
                is_gpu=name in GPU_WORK,
                is_launch=name in LAUNCHES,
                is_on_cpu=name in ("cpu_op", "user_annotation"),
                is_annotation=name in ANNOTATIONS,
            )
        if phase == "M":
            return Kind("metadata", True, is_metadata=True)
        if phase in FLOW_PHASES:
            return Kind(name, selection.keeps_flow(name), is_flow=True)
        return Kind(name, not name or selection.keeps_category(name))


class BlockKinds:
    """The kind of each event of a block.

    Attributes:
        keys: phase and category, which a zero byte separates, of those that there are.
        kinds: what a selection makes of them.
        code: for each event, its kind's place in `kinds`.
    """

    def __init__(self, events: Sequence[Any], table: KindTable) -> None:
        # One string a key: half the time of tuples, and this is done for every event.
        self.keys, self.code = coded([f"{event.ph}\0{event.cat}" for event in events])
        self.kinds = [table.kind(key) for key in self.keys]

    def of(self, index: int) -> Kind:
        """The kind of one event."""
        return self.kinds[int(self.code[index])]

    def where(self, *properties: str) -> NDArray[np.bool_]:
        """For each event, whether its kind has any of these properties."""
        having = [any(getattr(kind, name) for name in properties) for kind in self.kinds]
        found: NDArray[np.bool_] = np.array(having, dtype=bool)[self.code]
        return found

    def add_to(
        self, account: Account, sizes: NDArray[np.int64], mask: NDArray[np.bool_] | None = None
    ) -> None:
        """Count events and bytes by category.

        Args:
            sizes: of each event's text.
            mask: the events to count; None for all.
        """
        code = self.code if mask is None else self.code[mask]
        sizes = sizes if mask is None else sizes[mask]
        events = np.bincount(code, minlength=len(self.kinds)).tolist()
        size = np.bincount(code, weights=sizes, minlength=len(self.kinds)).tolist()
        for number, kind in enumerate(self.kinds):
            if events[number]:
                count(account, kind.name, int(size[number]), events[number])
