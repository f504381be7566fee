# SPDX-License-Identifier: Apache-2.0
"""Traces as Perfetto timelines: `convert`."""

from megatron.torch_trace.perfetto.convert import Conversion, convert

__all__ = ["Conversion", "convert"]
