# SPDX-License-Identifier: Apache-2.0
"""Transformer Engine, where it can be imported."""

from __future__ import annotations

from typing import Any

from megatron.torch_trace.errors import TorchTraceError


class LeftOutError(TorchTraceError):
    """A variant needs what this machine does not have; the others are measured."""


def transformer_engine() -> Any:
    """`transformer_engine.pytorch`.

    Raises:
        LeftOutError: it is not there.
    """
    try:
        import transformer_engine.pytorch as engine
    except Exception as error:
        raise LeftOutError(
            f"Transformer Engine cannot be imported here ({type(error).__name__})."
        ) from None
    return engine
