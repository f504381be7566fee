# SPDX-License-Identifier: Apache-2.0
"""Kinds of events: all of one phase and category, decided on together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from megatron.torch_trace.columns.codes import Codes, kinds_of
from megatron.torch_trace.format.categories import (
    ANNOTATIONS,
    FLOW_PHASES,
    GPU_WORK,
    LAUNCHES,
    category,
)
from megatron.torch_trace.reader.event import Identity
from megatron.torch_trace.rewrite.category_totals import Account, count
from megatron.torch_trace.rewrite.selection import Selection

Keyed = tuple[list[tuple[str, str, Identity, Identity]], NDArray[np.intp]]
"""The different (phase, category, pid, tid), and for each event its index among them."""


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
        self._kinds: dict[tuple[str, str], Kind] = {}

    def kind(self, key: tuple[str, str]) -> Kind:
        """The kind of events with this phase and category."""
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._new(*key)
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

    Args:
        keyed: of the events, if it is known.

    Attributes:
        keys: (phase, category) of those that there are.
        kinds: what a selection makes of them.
        code: for each event, its kind's index in `kinds`.
    """

    def __init__(self, events: Sequence[Any], table: KindTable, keyed: Keyed | None = None) -> None:
        self.keys, self.code = _without_tracks(*keyed) if keyed else kinds_of(events)
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


def _without_tracks(
    keys: list[tuple[str, str, Identity, Identity]], code: NDArray[np.intp]
) -> tuple[list[tuple[str, str]], NDArray[np.intp]]:
    kinds = Codes()
    kind_of = kinds.of([(phase, written) for phase, written, _, _ in keys])
    return list(kinds), kind_of[code]
