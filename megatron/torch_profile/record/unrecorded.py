# SPDX-License-Identifier: Apache-2.0
"""Why a launch that asked for traces has recorded none, for the last line of its log.

Nothing is imported to find out: what was never imported never had a part in it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from megatron.torch_profile.config import FLAG
from megatron.torch_profile.followers import followers

_ARGUMENTS = "megatron.torch_profile.hooks.arguments"
_INSTEAD = (
    "call megatron.training.pretrain, or train of megatron.training.training for a loop around it; "
    "a loop of your own takes torch.profiler.profile itself"
)


def why_nothing(words: Sequence[str], status: int) -> str | None:
    """One sentence that says why nothing was recorded, and what to call instead.

    Args:
        words: the script's command line.
        status: how the script has ended.

    Returns:
        None where something was followed, where nobody asked, and where an error says why.
    """
    if FLAG not in words or {"-h", "--help", f"{FLAG}-help"} & {*words}:
        return None
    if not _was(_ARGUMENTS, "parser_seen") and not followers.followed:
        return (
            f"{FLAG} recorded nothing: this script never asked Megatron's own parser for its "
            f"arguments and never called Megatron's train(), whose iterations are followed; "
            f"{_INSTEAD}"
        )
    if status:
        return None
    if not followers.followed:
        return (
            f"{FLAG} recorded nothing: this script never called Megatron's train(), whose "
            f"iterations are followed; {_INSTEAD}"
        )
    if not followers.stepped:
        return (
            f"{FLAG} recorded nothing: this Megatron's train() never called train_step of "
            "megatron.training.training, which begins an iteration; call it there, once an "
            "optimizer step"
        )
    return None


def _was(module: str, name: str) -> Any:
    return getattr(sys.modules.get(module), name, False)
