# SPDX-License-Identifier: Apache-2.0
"""Other passes of the recorded ones: more micro-batches, other stages, layers elsewhere.

What a stage takes beyond its layers (the embedding on the first, the loss on the last) stays where
it is. A layer takes what layers take on the stage that it comes from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from megatron.torch_trace.analysis.replay.change import (
    Change,
    LayersMoved,
    MicroBatches,
    StagesBalanced,
    VirtualStages,
)
from megatron.torch_trace.analysis.replay.spans.orders import Shape
from megatron.torch_trace.analysis.replay.spans.passes import Passes, Times
from megatron.torch_trace.analysis.replay.spans.recorded_steps import MOST_PASSES
from megatron.torch_trace.errors import UsageError

_MOST_CHUNKS = 64


def altered(passes: Passes, changes: Sequence[Change]) -> Passes:
    """The passes after changes, whatever the order in which they are given.

    Raises:
        UsageError: a change is of what the recording does not have, or cannot be known.
    """
    # Numbers of micro-batches decide which virtual stages there can be.
    for kind in (MicroBatches, LayersMoved, StagesBalanced, VirtualStages):
        for change in changes:
            if isinstance(change, kind):
                passes = _altered(passes, change)
    shape = passes.shape
    if shape.chunks > 1 and shape.microbatches % shape.stages:
        near = max(shape.stages, round(shape.microbatches / shape.stages) * shape.stages)
        what = " ".join(one.text for one in changes) or "interleaving"
        raise UsageError(
            f"{what}: with virtual stages Megatron takes micro-batches in multiples of the "
            f"{shape.stages} pipeline stages, not {shape.microbatches}; {near} would do."
        )
    return passes


def _altered(passes: Passes, change: Change) -> Passes:
    if isinstance(change, MicroBatches):
        return _with_microbatches(passes, change)
    if passes.shape.stages == 1:
        raise UsageError(f"{change.text}: the recording has no pipeline, so no stages to change.")
    if isinstance(change, VirtualStages):
        return _with_chunks(passes, change)
    if isinstance(change, LayersMoved):
        return _with_layers_moved(passes, change)
    return replace(passes, cpu=_balanced(passes.cpu), gpu=_balanced(passes.gpu))


def _balanced(times: Times) -> Times:
    mean = times.mean(axis=(1, 3), keepdims=True)
    return np.broadcast_to(mean, times.shape).copy()


def _with_microbatches(passes: Passes, change: MicroBatches) -> Passes:
    """More of them are as the recorded ones were, without the first, which often is longer."""
    shape, count = passes.shape, change.count
    if count * shape.chunks * shape.stages > MOST_PASSES:
        most = MOST_PASSES // (shape.chunks * shape.stages)
        raise UsageError(f"{change.text}: is more than can be simulated; at most {most:,} can.")
    recorded = shape.microbatches
    number = np.arange(count)
    usual = 1 + (number - recorded) % max(1, recorded - 1)
    which = np.where(number < recorded, number, np.minimum(usual, recorded - 1))
    return replace(
        passes,
        shape=Shape(shape.stages, shape.chunks, count),
        cpu=passes.cpu[..., which],
        gpu=passes.gpu[..., which],
    )


def _with_chunks(passes: Passes, change: VirtualStages) -> Passes:
    shape, chunks = passes.shape, change.count
    if chunks == shape.chunks:
        return passes
    layers = passes.layers
    if chunks > (min(layers) if layers else _MOST_CHUNKS) or (
        layers and any(count % chunks for count in layers)
    ):
        held = "stages of at most 64 parts" if layers is None else _counted(layers)
        raise UsageError(f"{change.text}: {held} cannot be divided into {chunks} equal parts.")
    size = Shape(shape.stages, chunks, shape.microbatches)
    return replace(
        passes,
        shape=size,
        cpu=_divided(passes.cpu, layers, chunks, passes.sending),
        gpu=_divided(passes.gpu, layers, chunks),
        # Megatron lets sends and receives run beside compute as soon as stages are interleaved.
        is_blocking=chunks == 1,
    )


def _divided(
    times: Times, layers: tuple[int, ...] | None, chunks: int, sending: float = 0.0
) -> Times:
    """Equal parts of the layers; the embedding goes with the first part, the loss with the last.

    What every part sends and receives takes as long as before.
    """
    whole = times.sum(axis=3, keepdims=True)
    stages = times.shape[1]
    sent = np.minimum(sending * times.shape[3], whole)
    found = np.repeat((whole - sent) / chunks + sent / times.shape[3], chunks, axis=3)
    for stage, chunk in ((0, 0), (stages - 1, chunks - 1)):
        share = _beyond_layers(times, layers, stage)
        own = whole[:, stage] * share[None, :, None, None]
        found[:, stage] -= own / chunks
        found[:, stage, :, chunk] += own[:, :, 0]
    return found


def _beyond_layers(times: Times, layers: tuple[int, ...] | None, stage: int) -> Times:
    """By direction, the part of a stage's time that other stages do not have for their layers."""
    stages = times.shape[1]
    counts = np.array(layers if layers else (1,) * stages, dtype=np.float64)
    totals = times.sum(axis=3).mean(axis=(0, 3))
    each = totals / counts[:, None]
    others = each[1:-1].mean(axis=0) if stages > 2 else each.min(axis=0)
    own = totals[stage]
    share = np.divide(own - others * counts[stage], own, out=np.zeros_like(own), where=own > 0)
    return np.asarray(np.clip(share, 0.0, 1.0), dtype=np.float64)


def _with_layers_moved(passes: Passes, change: LayersMoved) -> Passes:
    layers, stages = passes.layers, passes.shape.stages
    for stage in (change.source, change.target):
        if stage >= stages:
            raise UsageError(
                f"{change.text}: there is no stage {stage}; the pipeline has 0 to {stages - 1}."
            )
    if layers is None:
        raise UsageError(
            f"{change.text}: how many layers a stage has is unknown; record modules with "
            "--torch-profile-spans phases modules."
        )
    if change.layers >= layers[change.source]:
        raise UsageError(
            f"{change.text}: stage {change.source} would have no layer left; it has "
            f"{_counted((layers[change.source],))}."
        )
    moved = list(layers)
    moved[change.source] -= change.layers
    moved[change.target] += change.layers
    return replace(
        passes,
        cpu=_moved(passes.cpu, layers, change),
        gpu=_moved(passes.gpu, layers, change),
        layers=tuple(moved),
    )


def _moved(times: Times, layers: tuple[int, ...], change: LayersMoved) -> Times:
    found = times.copy()
    beyond = _beyond_layers(times, layers, change.source)
    part = (1.0 - beyond) * change.layers / layers[change.source]
    taken = times[:, change.source].sum(axis=2, keepdims=True) * part[None, :, None, None]
    totals = times.mean(axis=(0, 2, 4))
    source, target = totals[change.source].argmax(), totals[change.target].argmin()
    found[:, change.source, :, source] -= taken[:, :, 0]
    found[:, change.target, :, target] += taken[:, :, 0]
    return np.maximum(found, 0.0)


def _counted(layers: Sequence[int]) -> str:
    counts = sorted(set(layers))
    many = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{many} layer{'' if counts == [1] else 's'}"
