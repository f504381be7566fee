# SPDX-License-Identifier: Apache-2.0
"""What memory would follow: at the moments that could be the peak, how much scales with what."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.allocator.device_memory import DeviceMemory
from megatron.torch_trace.allocator.fit.scaling import matching, scaling_of
from megatron.torch_trace.allocator.history.passes import passes_of
from megatron.torch_trace.allocator.purpose.categories import CATEGORIES, Category
from megatron.torch_trace.allocator.usage import over_time
from megatron.torch_trace.analysis.timeline.span_names import BACKWARD, FORWARD
from megatron.torch_trace.format.integer_arrays import Ints, ints

_PIECES = 500
_LAYER = re.compile(r"transformer_layer\.py|TransformerLayer|layers\.\d+\b")
_CORE = re.compile(
    r"dot_product_attention|core_attention|flash_attn|DotProductAttention|pytorch/attention"
)


@dataclass(frozen=True, slots=True)
class Moments:
    """Bytes in use at moments of one device; all arrays have one entry for each moment.

    Args:
        in_use: all of it.
        scaling: what grows with the micro-batch: activations, the passes' own temporaries.
        unsure: what may grow with it, or may not.
        layers: activations of transformer layers.
        core: of these, the ones of core attention.
        optimizer: optimizer state.
        parameters, gradients: of the model.
        begun: micro-batches whose forward began and whose backward has not ended; -1 where no
            marks tell it.
    """

    in_use: Ints
    scaling: Ints
    unsure: Ints
    layers: Ints
    core: Ints
    optimizer: Ints
    parameters: Ints
    gradients: Ints
    begun: Ints

    @property
    def peak(self) -> int:
        """Position of the moment with most in use."""
        return int(self.in_use.argmax())

    @property
    def deepest(self) -> int:
        """Position of the moment with most activations of layers."""
        return int(self.layers.argmax())


def moments_of(memory: DeviceMemory) -> Moments:
    """The moments of a device: of each piece of time those with most of any part."""
    category = {one: memory.categories == number for number, one in enumerate(CATEGORIES)}
    layers = category[Category.ACTIVATIONS] & matching(
        memory, lambda frame: _LAYER.search(frame) is not None
    )
    core = layers & matching(memory, lambda frame: _CORE.search(frame) is not None)
    scaling = scaling_of(memory)
    columns = [
        over_time(memory.allocations, rows)
        for rows in (
            scaling.grows,
            scaling.unsure,
            layers,
            core,
            category[Category.OPTIMIZER_STATE],
            category[Category.PARAMETERS],
            category[Category.GRADIENTS],
        )
    ]
    in_use = memory.usage.in_use
    kept = _kept(in_use, (in_use, columns[0], columns[0] + columns[1], columns[2]))
    begun = _begun(memory, ints(memory.usage.time[kept]))
    return Moments(*(ints(one) for one in (*(c[kept] for c in (in_use, *columns)), begun)))


def _kept(in_use: Ints, wanted: Sequence[Ints]) -> Ints:
    bounds = np.unique(np.linspace(0, len(in_use), _PIECES + 1).astype(np.int64))
    found = {
        start + int(column[start:end].argmax())
        for start, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
        for column in wanted
    }
    return ints(np.array(sorted(found), dtype=np.int64))


def _begun(memory: DeviceMemory, times: Ints) -> Ints:
    """Marked forwards that have begun less marked backwards that have ended."""
    passes = passes_of(memory.snapshot.annotations)
    begins = [one.start for one in passes if one.direction == FORWARD]
    ends = [one.end for one in passes if one.direction == BACKWARD and one.end is not None]
    if not begins or not ends:
        return ints(np.full(len(times), -1))
    begun = np.searchsorted(np.sort(begins), times, side="right")
    ended = np.searchsorted(np.sort(ends), times, side="right")
    return ints(begun - ended)
