# SPDX-License-Identifier: Apache-2.0
"""Which of several models an optimizer trains, told by its parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch


def owners(models: Mapping[str | None, Sequence[torch.nn.Module]]) -> dict[int, str]:
    """Whose a parameter is, and the copy of it that Megatron's optimizers train, by identity.

    Args:
        models: by name; one without a name owns nothing.
    """
    found: dict[int, str] = {}
    for name, of in models.items():
        for parameter in (one for model in of if name for one in model.parameters()):
            for one in (parameter, getattr(parameter, "main_param", None)):
                if one is not None:
                    found.setdefault(id(one), name or "")
    return found


def owner_of(optimizer: Any, known: Mapping[int, str]) -> str | None:
    """The name of the model whose parameters an optimizer has; None where they are not of one.

    Args:
        optimizer: of torch.optim.
        known: see `owners`.
    """
    if not known:
        return None
    of = {known.get(id(one)) for group in optimizer.param_groups for one in group["params"]}
    return of.pop() if len(of) == 1 else None
