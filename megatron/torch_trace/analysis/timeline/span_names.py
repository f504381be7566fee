# SPDX-License-Identifier: Apache-2.0
"""What the names of spans say: modules, micro-batches and phases, as capture writes them.

decoder.layers.3.mlp: MLP (recompute)       module, class, pass
...linear_fc1: Linear (weight gradient)     what the backward pass of a module left for later
backward micro-batch 3 chunk 1 (steady)     direction, number, virtual stage, place in 1F1B
backward micro-batch 3 (steady), part       one of its turns with another micro-batch
backward micro-batch 3 of critic (steady)   of one of several models of a loop
optimizer-inner-step                        a timer of Megatron's
step of critic, optimizer of critic         phases of one of several models
garbage collection (generation 2)           Python's garbage collector, on the thread that it stops
"""

from __future__ import annotations

import re
from dataclasses import dataclass

FORWARD, BACKWARD, RECOMPUTE = "forward", "backward", "recompute"
PASSES = (FORWARD, BACKWARD, RECOMPUTE)

ROOT = "model"
"""Path of the model itself; that of a virtual stage is `chunk<i>.model`."""

ANY = "*"
"""What stands for a number in the path of a module."""

COLLECTION = "garbage collection"
"""What the span of every collection of Python's garbage collector begins with."""
COLLECTIONS_NAME = "garbage_collection"
"""In capture's metadata: how many collections of all generations stopped the process, and how long,
and how many have no span because their thread was not recorded; without that, any may have none."""

_WEIGHT_GRADIENT = "weight gradient"
_MODULE = re.compile(
    r"(?P<path>\w+(?:\.\w+)*): (?P<type>[A-Za-z_]\w*)"
    r"(?: \((?P<pass>backward|recompute|weight gradient)\))?"
)
_MICROBATCH = re.compile(
    r"(?P<direction>forward|backward) micro-batch(?: (?P<number>\d+))?(?: of (?P<model>\w+))?"
    r"(?: chunk (?P<chunk>\d+))?"
    r"(?: \((?P<place>warmup|steady|cooldown)\))?(?P<part>, part)?"
)
# Megatron names its timers in words joined by hyphens, and a few in one word.
_TIMER = re.compile(
    r"[a-z][a-z0-9]*(?:-[a-z0-9]+)+|optimizer|logging|evaluation|checkpoint"
    r"|(?:step|optimizer|forward without gradients) of \w+"
)


@dataclass(frozen=True, slots=True)
class ModuleSpan:
    """One pass of a module, or what a pass left for later.

    Args:
        path, type: dotted path and class of the module.
        direction: one of `PASSES`.
        is_rest: weight gradients that the backward pass left out; no pass of its own.
    """

    path: str
    type: str
    direction: str
    is_rest: bool = False


@dataclass(frozen=True, slots=True)
class MicrobatchSpan:
    """A micro-batch's forward or backward; what the name does not tell is None.

    Args:
        direction: `forward` or `backward`.
        number: within the iteration, from 0.
        chunk: virtual pipeline stage.
        place: in 1F1B: `warmup`, `steady` or `cooldown`.
        is_part: it took turns with another micro-batch, and this is one of its turns.
        model: the name of its model, where a loop has several.
    """

    direction: str
    number: int | None
    chunk: int | None
    place: str | None
    is_part: bool = False
    model: str | None = None


def module_span(name: str) -> ModuleSpan | None:
    """The module whose span has this name, None for other names."""
    match = _MODULE.fullmatch(name)
    if not match:
        return None
    if match["pass"] == _WEIGHT_GRADIENT:
        return ModuleSpan(match["path"], match["type"], BACKWARD, is_rest=True)
    return ModuleSpan(match["path"], match["type"], match["pass"] or FORWARD)


def merged_path(path: str) -> tuple[str, ...]:
    """Parts of a module's dotted path, `ANY` for numbers: layers that are alike have the same."""
    return tuple(ANY if part.isdigit() else part for part in path.split("."))


def microbatch_span(name: str) -> MicrobatchSpan | None:
    """The micro-batch whose span has this name, None for other names."""
    match = _MICROBATCH.fullmatch(name)
    if not match:
        return None
    number, chunk = (int(text) if text else None for text in match.group("number", "chunk"))
    return MicrobatchSpan(
        match["direction"],
        number,
        chunk,
        match["place"],
        match["part"] is not None,
        match["model"],
    )


def phase_of(name: str) -> str | None:
    """The phase whose span has this name: a timer's name or `forward micro-batch`, else None.

    Each of several models has phases of its own: `forward micro-batch of critic`.
    """
    microbatch = microbatch_span(name)
    if microbatch:
        of = f" of {microbatch.model}" if microbatch.model else ""
        return f"{microbatch.direction} micro-batch{of}"
    return name if _TIMER.fullmatch(name) else None


def collection_name(generation: int) -> str:
    """The name of the span of one collection.

    Args:
        generation: as Python numbers it.
    """
    return f"{COLLECTION} (generation {generation})"


def is_collection(name: str) -> bool:
    """Whether a span is around one collection of Python's garbage collector."""
    return name.startswith(f"{COLLECTION} (generation ")


def is_optimizer(name: str) -> bool:
    """Whether a span is around a step of the optimizer: Megatron's timer, or torch's own range."""
    return name == "optimizer" or name.startswith("Optimizer.step#")
