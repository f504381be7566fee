# SPDX-License-Identifier: Apache-2.0
"""Transformer Engine, where it can be imported."""

from __future__ import annotations

from typing import Any

from megatron.torch_profile.component.ready.place import Place
from megatron.torch_trace.errors import UsageError


def transformer_engine(place: Place) -> Any:
    """`transformer_engine.pytorch`.

    Raises:
        UsageError: it is not there.
    """
    try:
        import transformer_engine.pytorch as engine  # type: ignore[import-not-found]
    except Exception as error:
        raise UsageError(
            f"target {place.case.target}: Transformer Engine cannot be imported "
            f"({type(error).__name__}); leave transformer_engine out of this config."
        ) from None
    return engine
