# SPDX-License-Identifier: Apache-2.0
"""What a recorded command line says: flags as words, with a value behind them or behind a `=`.

Capture writes the name of the training loop beside it. Where that is not Megatron's own, the words
are no flags of Megatron's, and capture has written in such words what the loop has set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_VIRTUAL_STAGES = (
    "--num-virtual-stages-per-pipeline-rank",
    "--virtual-pipeline-model-parallel-size",
)
_VIRTUAL_LAYERS = "--num-layers-per-virtual-pipeline-stage"
INTERLEAVING = (_VIRTUAL_LAYERS, *_VIRTUAL_STAGES)
"""Flags, any of which makes a pipeline interleaved."""
LAYOUT = "--pipeline-model-parallel-layout"
_ELSEWHERE = (LAYOUT, "--yaml-cfg", "--hybrid-layer-pattern", "--use-checkpoint-args")
"""With one of these the command line does not tell the number of virtual stages."""


MEGATRON = "megatron"
"""The name of a loop whose flags are Megatron's."""


def words_in(written: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """A list of words in capture's metadata; empty if it is missing, or something else."""
    words = written.get(name)
    return tuple(map(str, words)) if isinstance(words, list) else ()


def settings(written: Mapping[str, Any]) -> tuple[str, ...]:
    """What a run has set, in words of Megatron's command line; empty if nothing tells.

    Args:
        written: capture's metadata of a trace.
    """
    return words_in(written, "argv" if loop_in(written) in (None, MEGATRON) else "flags")


def loop_in(written: Mapping[str, Any]) -> str | None:
    """The training loop that capture's metadata names; None if it names none."""
    loop = written.get("loop")
    return loop if isinstance(loop, str) else None


def has(argv: Sequence[str], flag: str) -> bool:
    """Whether `flag` is given, with a value or without."""
    return any(word == flag or word.startswith(f"{flag}=") for word in argv)


def value_of(argv: Sequence[str], flag: str) -> str | None:
    """The word behind `flag`; of several the last, as argparse has it. None if it is not given."""
    found = None
    for word, following in zip(argv, [*argv[1:], None], strict=False):
        if word == flag:
            found = following
        elif word.startswith(f"{flag}="):
            found = word.partition("=")[2]
    return found


def virtual_stages(argv: Sequence[str], stages: int) -> int | None:
    """Virtual stages of each rank of a pipeline; None if the command line does not tell.

    Args:
        argv: empty if it was not recorded.
        stages: of the pipeline.
    """
    if not argv or any(has(argv, flag) for flag in _ELSEWHERE):
        return None
    for flag in _VIRTUAL_STAGES:
        if has(argv, flag):
            return _number(argv, flag)
    if not has(argv, _VIRTUAL_LAYERS):
        return 1
    layers, each = _number(argv, "--num-layers"), _number(argv, _VIRTUAL_LAYERS)
    if not layers or not each or layers % (stages * each):
        return None
    return layers // (stages * each)


def _number(argv: Sequence[str], flag: str) -> int | None:
    text = value_of(argv, flag) or ""
    return int(text) if text.isdecimal() else None
