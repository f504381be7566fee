# SPDX-License-Identifier: Apache-2.0
"""Which kernel of A is which of B: by name, and where the compiler numbered it, without the number.

The same kernel of another build is called `{lambda()#12}` where it was `{lambda()#11}`, `4096ul`
where it was `4096u`, and inductor numbers its kernels in the order of compilation.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache

_NOISE = (
    (re.compile(r"\(anonymous namespace\)|<unnamed>|_GLOBAL__N_\w+"), "anonymous"),
    (re.compile(r"\{lambda\((?:[^()]|\([^()]*\))*\)#\d+\}"), "{lambda}"),
    (re.compile(r"(?<=\d)(?:u|l|ul|ull|lu)\b", re.IGNORECASE), ""),
    (re.compile(r"\s+"), ""),
)
_TRITON = re.compile(r"^(triton_\w+?)(?:_\d+)?(?:_[0-9d]+e?)?$")


@lru_cache(maxsize=1 << 16)
def alike(name: str) -> str:
    """What is left of a kernel's name without that which another build numbers otherwise."""
    triton = _TRITON.match(name)
    if triton:
        return triton[1]
    for pattern, replacement in _NOISE:
        name = pattern.sub(replacement, name)
    return name


def matched_names(before: Iterable[str], after: Iterable[str]) -> Mapping[str, str]:
    """For each name of A or B the name of the row that it belongs to.

    Names that are alike are one row, unless A and B have the very same ones (then each is its own),
    or only one of them has any.
    """
    sides = (set(before), set(after))
    groups: dict[str, list[str]] = defaultdict(list)
    for name in sorted(sides[0] | sides[1]):
        groups[alike(name)].append(name)
    row_of: dict[str, str] = {}
    for names in groups.values():
        here, there = ({name for name in names if name in side} for side in sides)
        apart = here == there or not here or not there
        row_of.update({name: name if apart else names[0] for name in names})
    return row_of
