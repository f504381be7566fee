# SPDX-License-Identifier: Apache-2.0
"""What is wrong with the flags that watch a run, as soon as they are parsed."""

from __future__ import annotations

import math

from megatron.torch_profile.config import TorchProfileConfig, flag_of
from megatron.torch_profile.plan import ranks
from megatron.torch_profile.plan.ranks import Layout
from megatron.torch_trace.errors import UsageError


def check(config: TorchProfileConfig, layout: Layout) -> None:
    """Refuse what can be right in no run.

    Raises:
        UsageError: one sentence.
    """
    if config.on_hang is not None and not config.on_hang > 0:
        raise UsageError(f"{flag_of('on_hang')} {config.on_hang:g}: must be more than 0 seconds.")
    if not 1 < config.trigger_factor < math.inf:
        shown = f"{flag_of('trigger_factor')} {config.trigger_factor:g}"
        raise UsageError(f"{shown}: must be more than 1.")
    words = config.trigger_ranks
    if words is None:
        return
    shown = f"{flag_of('trigger_ranks')} {' '.join(words)}"
    if words == ["slowest"]:
        if not config.monitor:
            raise UsageError(
                f"{shown}: nothing sees which rank is slowest; add {flag_of('monitor')}."
            )
        return
    try:
        ranks.check(words, layout)
    except UsageError as error:
        raise UsageError(
            str(error).replace(flag_of("ranks"), flag_of("trigger_ranks"), 1)
        ) from None
