# SPDX-License-Identifier: Apache-2.0
"""Step numbers that come again: a profiler was started again, or there were several."""

from __future__ import annotations

from collections.abc import Sequence

from megatron.torch_trace.wording import ranks


def again_sentence(steps: Sequence[int]) -> list[str]:
    """What numbers that come again mean for the reader; empty if none does.

    Args:
        steps: numbers of the steps of one trace, in order.
    """
    again = sorted({number for number in steps if steps.count(number) > 1})
    if not again:
        return []
    which = f"Step{'s' * (len(again) > 1)} {ranks(tuple(again))}"
    come = "come" if len(again) > 1 else "comes"
    return [
        f"{which} {come} more than once: a profiler was started again in this process; "
        f"all {len(steps)} steps are in the window."
    ]
