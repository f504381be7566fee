# SPDX-License-Identifier: Apache-2.0
"""What a collective is called in a sentence."""

from __future__ import annotations

from megatron.torch_trace.analysis.communication.dimensions import ADJECTIVES, dimension_of
from megatron.torch_trace.flight_recorder.record import Call, Group


def call_words(call: Call, groups: dict[str, Group]) -> str:
    """`tensor-parallel all_reduce 8,112`; of a group that nobody described `all_reduce 3 of group
    17`."""
    name = call.name.strip("_")
    if not call.group and not call.stack:
        return name
    if not call.group:  # known by a Python stack alone
        where, _, function = call.stack[0].rpartition(" ")
        return f"{name}, {where.rpartition('/')[2]} {function}".strip(", ")
    group = groups.get(call.group, Group(call.group, "", ()))
    if call.is_transfer:
        name = name.partition(" ")[0]
        where = "" if call.peer is None else f" {'to' if name == 'send' else 'from'} {call.peer}"
        return f"{_adjective(group)} {name}{where}"
    return f"{_adjective(group)} {name} {call.sequence:,}"


def call_kind(call: Call, groups: dict[str, Group]) -> str:
    """The same without what differs from call to call: `tensor-parallel all_reduce`."""
    group = groups.get(call.group, Group(call.group, "", ()))
    name = call.name.partition(" ")[0].strip("_")
    return f"{_adjective(group)} {name}"


def sized_kind(call: Call) -> str:
    """What must be equal on all ranks of the group: the name, and the size of most collectives."""
    return f"{call.name} {call.sizes}".strip() if call.name in _EQUAL_SIZES else call.name


_EQUAL_SIZES = {"all_reduce", "_all_gather_base", "_reduce_scatter_base", "broadcast", "all_gather"}
"""Collectives whose sizes must be the same on all ranks; all-to-all may differ."""


def _adjective(group: Group) -> str:
    dimension = dimension_of(group.description)
    known = ADJECTIVES.get(dimension)
    return known or (group.description or f"group {group.name}")
