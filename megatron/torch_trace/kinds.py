# SPDX-License-Identifier: Apache-2.0
"""Kinds of events: all of one phase and category, decided on together."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from megatron.torch_trace.filters import Selection
from megatron.torch_trace.reader import SlimEvent
from megatron.torch_trace.vocabulary import ANNOTATIONS, FLOW_PHASES, GPU_WORK, LAUNCHES, category

_PHASE_AND_CATEGORY = attrgetter("ph", "cat")


class Kind(NamedTuple):
    """All events of one phase and category.

    Args:
        name: present name of the category, or `metadata`.
        kept: whether a selection wants such events at all.
    """

    name: str
    kept: bool
    is_metadata: bool = False
    is_gpu: bool = False
    is_launch: bool = False
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
                is_gpu=name in GPU_WORK,
                is_launch=name in LAUNCHES,
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
        kinds: those that there are.
        code: for each event, its kind's place in `kinds`.
    """

    def __init__(self, events: Sequence[SlimEvent], table: KindTable) -> None:
        codes: dict[tuple[str, str], int] = {}
        written = map(_PHASE_AND_CATEGORY, events)
        self.code = np.array([codes.setdefault(key, len(codes)) for key in written], dtype=np.intp)
        self.kinds = [table.kind(key) for key in codes]

    def of(self, index: int) -> Kind:
        """The kind of one event."""
        return self.kinds[int(self.code[index])]

    def where(self, *properties: str) -> NDArray[np.bool_]:
        """For each event, whether its kind has any of these properties."""
        having = [any(getattr(kind, name) for name in properties) for kind in self.kinds]
        found: NDArray[np.bool_] = np.array(having, dtype=bool)[self.code]
        return found
