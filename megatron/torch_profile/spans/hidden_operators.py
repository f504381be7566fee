# SPDX-License-Identifier: Apache-2.0
"""A window without operators: collectives, with their arguments, and ranges are recorded all the
same.

Torch tells the arguments of a collective where it tells of operators, so its switch for them is on
for as long as a collective is being launched. The same holds for ranges of the user's and torch's
own; those of this package see to it themselves.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from megatron.torch_profile.patching import Patch, PatchSet
from megatron.torch_profile.spans.ranges import hide_operators, show_operators, shown

_C10D = "torch.distributed.distributed_c10d"
# All that a collective of `torch.distributed` calls in the end, under whichever name it was
# imported: methods of a class, of which each torch has others.
_COLLECTIVE = re.compile(
    r"_?(all_?gather|all_?reduce|all_?to_?all|barrier|broadcast|end_coalescing|gather"
    r"|monitored_barrier|recv|reduce|scatter|send|start_coalescing)(_|$)"
)


@lru_cache(maxsize=1)
def _patches() -> PatchSet:
    groups = vars(getattr(sys.modules.get(_C10D), "ProcessGroup", object))
    return PatchSet(
        (
            *(
                Patch(_C10D, f"ProcessGroup.{name}", shown)
                for name in groups
                if _COLLECTIVE.match(name)
            ),
            Patch("torch.autograd.profiler", "record_function.__enter__", shown),
        )
    )


class HiddenOperators:
    """Operators of the thread that trains, which a recording is to leave out."""

    def start(self) -> None:
        """The recording has begun, in this thread."""
        hide_operators()


@contextmanager
def hidden_operators() -> Iterator[HiddenOperators]:
    """While open, what must be recorded without operators is wrapped; then all is as before."""
    patches = _patches()
    patches.apply()
    try:
        yield HiddenOperators()
    finally:
        show_operators()
        patches.remove()
