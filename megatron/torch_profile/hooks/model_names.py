# SPDX-License-Identifier: Apache-2.0
"""The names of a loop's models: what can be one, who joins by one, and a step of none of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from megatron.torch_profile.hooks import loop_facts
from megatron.torch_profile.log import Slug, exit_with, warn
from megatron.torch_profile.plan.training_loop import Models
from megatron.torch_trace.errors import UsageError

_NAME = re.compile(r"(?!model$|chunk\d+$)[A-Za-z_]\w*")
"""Paths of modules may begin with the two others."""


def check(names: Iterable[Any]) -> None:
    """Those of several models, which begin the paths of their modules.

    Raises:
        SystemExit: one is no such name; one sentence says which, and the status is 2.
    """
    for name in names:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            wrong = UsageError(
                f"attach(): {name!r} is no name for a model; take one word of letters, digits and "
                "underscores, such as actor, but not model, or chunk with a number."
            )
            exit_with(wrong)


def joined(models: Models, added: Mapping[str, Any]) -> bool:
    """Whether models join those that are followed, which may be among them already."""
    for name, of in models.by_name.items():
        if name in added and not loop_facts.is_same(of, added[name]):
            return False
    if not models.by_name:
        return False
    for name in added.keys() - models.by_name.keys():
        models.add(name, loop_facts.chunks_of(added[name]))
    return True


def say_unknown(name: object, models: Models) -> None:
    """A step is of a model that has no such name.

    Args:
        name: whatever `step(model=)` was given.
        models: that are followed.
    """
    known = list(models.by_name)
    near = get_close_matches(str(name), known, n=1)
    warn(
        Slug.MODEL_NOT_ATTACHED,
        "step(model=%r) is of no attached model; attached: %s%s",
        name,
        ", ".join(known) or 'one without a name (with a name: attach({"actor": actor}))',
        f"; did you mean {near[0]}?" if near else "",
    )
