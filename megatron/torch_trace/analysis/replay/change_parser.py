# SPDX-License-Identifier: Apache-2.0
"""From a flag and its value to a change; of a wrong one, a sentence with the nearest right one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NoReturn

from megatron.torch_trace.analysis.replay.change import (
    COPY_KINDS,
    LAYERS,
    Change,
    CollectionsScaled,
    CommunicationScaled,
    CopiesScaled,
    CudaGraphs,
    DataLoaderScaled,
    GpuAsMedian,
    KernelsScaled,
    LaunchScaled,
    LayersMoved,
    MicroBatches,
    ModuleScaled,
    OperatorsScaled,
    Overlapped,
    RankAsMedian,
    StagesBalanced,
    TinyKernelsScaled,
    VirtualStages,
    WithoutBarriers,
    WithoutSynchronisation,
)
from megatron.torch_trace.analysis.replay.change_values import (
    MOST_FACTOR,
    USUAL_FACTOR,
    dimension_near,
    factor_near,
    factor_of,
    first_number,
    name_and_factor,
    name_near,
)
from megatron.torch_trace.errors import UsageError

_DIMENSION = r"[A-Za-z_][\w.-]*"
_MOST = 1 << 20


class _WrongError(ValueError):
    """A value that says no change; its text is the nearest one that does."""


@dataclass(frozen=True, slots=True)
class Form:
    """How a change is written.

    Args:
        flag: `--rank`.
        metavar: what stands behind it.
        read: a value to the change; raises what `_WrongError` is for.
    """

    flag: str
    metavar: str
    read: Callable[[str], Change]


def read(flag: str, value: str) -> Change:
    """The change that a flag and its value ask for.

    Raises:
        UsageError: there is no such flag, or the value is wrong.
    """
    form = FORMS.get(flag)
    if form is None:
        raise UsageError(f"{flag}: no such change; {_nearest_flag(flag)}")
    try:
        return form.read(value.strip())
    except _WrongError as wrong:
        raise UsageError(
            f"{flag} {value}: must be {_right(form)}; did you mean {flag} "
            f"{shlex.quote(str(wrong))}?"
        ) from None


def read_text(text: str) -> Change:
    """The same from one text, as `Change.text` has it: `--rank 2=median` or `--launch*0.5`.

    Raises:
        UsageError: there is no such flag, or the value is wrong.
    """
    match = re.fullmatch(r"\s*(--[a-z-]+)(?:\s+|=|(?=\*))(.+)", text, re.DOTALL)
    if match is None:
        flag = text.split()[0] if text.split() else text
        if flag in FORMS:
            raise UsageError(f"{flag}: needs a value, such as {flag} {FORMS[flag].metavar}.")
        raise UsageError(f"{flag or 'an empty change'}: no such change; {_nearest_flag(flag)}")
    return read(match[1], match[2])


def _right(form: Form) -> str:
    """What a change takes, in words where it is a number."""
    if form.metavar in ("N", "V"):
        return f"a whole number from 1 to {_MOST - 1:,}"
    if "FACTOR" not in form.metavar:
        return form.metavar
    whole = "a factor" if form.metavar == "FACTOR" else form.metavar
    return f"{whole} (0: no time; 0.5: half of it; at most {MOST_FACTOR:,.0f})"


def _nearest_flag(flag: str) -> str:
    near = get_close_matches(f"--{flag.lstrip('-')}", FORMS, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(FORMS)}."


def _as_median(change: Callable[[int], Change]) -> Callable[[str], Change]:
    """What reads a rank: `2=median`."""

    def read_rank(value: str) -> Change:
        match = re.fullmatch(r"(\d+)\s*=\s*median", value)
        if match and int(match[1]) < _MOST:
            return change(int(match[1]))
        raise _WrongError(f"{first_number(value, 0)}=median")

    return read_rank


def _comm(value: str) -> Change:
    name, factor = name_and_factor(value)
    if name is not None and factor is not None and re.fullmatch(_DIMENSION, name):
        return CommunicationScaled(name.lower(), factor)
    raise _WrongError(f"{dimension_near(value)}*{factor_near(value):g}")


def _overlap(value: str) -> Change:
    if re.fullmatch(_DIMENSION, value):
        return Overlapped(value.lower())
    raise _WrongError(dimension_near(value))


def _by_factor(change: Callable[[float], Change], usual: float) -> Callable[[str], Change]:
    """What reads a factor alone: `0.5` or `*0.5`."""

    def read_factor(value: str) -> Change:
        factor = factor_of(value.removeprefix("*"))
        if factor is not None:
            return change(factor)
        raise _WrongError(f"{factor_near(value, usual):g}")

    return read_factor


def _by_word(change: Change) -> Callable[[str], Change]:
    """What reads the one value that a change can have."""

    def read_word(value: str) -> Change:
        if value == change.value:
            return change
        raise _WrongError(change.value)

    return read_word


def _kernel(value: str) -> Change:
    pattern, factor = name_and_factor(value)
    if pattern and factor is not None:
        try:
            re.compile(pattern)
        except re.error:
            raise _WrongError(f"{re.escape(pattern)}*{factor:g}") from None
        return KernelsScaled(pattern, factor)
    raise _WrongError(f"{name_near(value, 'gemm')}*{factor_near(value):g}")


def _module(value: str) -> Change:
    name, factor = name_and_factor(value)
    if name and factor is not None and re.fullmatch(r"[\w.]+", name):
        return ModuleScaled(name, factor)
    raise _WrongError(f"{name_near(value, 'mlp')}*{factor_near(value):g}")


def _cuda_graphs(value: str) -> Change:
    if re.fullmatch(r"[A-Za-z_][\w.]*", value):
        return CudaGraphs(value)
    raise _WrongError(name_near(value, LAYERS))


def _copies(value: str) -> Change:
    name, sign, text = value.partition("=")
    factor = factor_of(text)
    if not sign:
        scaled, factor = name_and_factor(value)
        name = scaled or ""
    if name.strip().lower() in COPY_KINDS and factor is not None:
        return CopiesScaled(name.strip().lower(), factor)
    word = re.match(r"[A-Za-z]*", value)
    near = get_close_matches(word[0].lower() if word else "", COPY_KINDS, n=1)
    raise _WrongError(f"{near[0] if near else COPY_KINDS[0]}={factor_near(value, 0):g}")


def _micro_batches(value: str) -> Change:
    return MicroBatches(_count(value, 16))


def _virtual_stages(value: str) -> Change:
    return VirtualStages(_count(value, 2))


def _move_layers(value: str) -> Change:
    # A shell takes an unquoted `3>2` for a redirection, so a colon does as well.
    match = re.fullmatch(r"(\d+)\s*[>:]\s*(\d+)(?:\s*\*\s*(\d+))?", value)
    if match:
        source, target, layers = int(match[1]), int(match[2]), int(match[3] or 1)
        if source != target and layers and max(source, target, layers) < _MOST:
            return LayersMoved(source, target, layers)
    numbers = [int(one) for one in re.findall(r"\d+", value)[:2]]
    source = numbers[0] if numbers else 1
    target = numbers[1] if len(numbers) > 1 and numbers[1] != source else max(source - 1, 0)
    raise _WrongError(f"{source}>{target if target != source else source + 1}")


def _count(value: str, usual: int) -> int:
    if re.fullmatch(r"\d+", value) and 0 < int(value) < _MOST:
        return int(value)
    _wrong_count(value, usual)


def _wrong_count(value: str, usual: int) -> NoReturn:
    raise _WrongError(str(min(first_number(value, usual) or usual, _MOST - 1)))


_ALL_FORMS: Sequence[Form] = (
    Form("--rank", "R=median", _as_median(RankAsMedian)),
    Form("--gpu", "R=median", _as_median(GpuAsMedian)),
    Form("--comm", "DIM*FACTOR", _comm),
    Form("--overlap", "DIM", _overlap),
    Form("--launch", "FACTOR", _by_factor(LaunchScaled, 0)),
    Form("--cuda-graphs", "MODULE", _cuda_graphs),
    Form("--cpu-operators", "FACTOR", _by_factor(OperatorsScaled, USUAL_FACTOR)),
    Form("--kernel", "REGEX*FACTOR", _kernel),
    Form("--module", "NAME*FACTOR", _module),
    Form("--copies", "KIND=FACTOR", _copies),
    Form("--sync", "none", _by_word(WithoutSynchronisation())),
    Form("--data-loader", "FACTOR", _by_factor(DataLoaderScaled, 0)),
    Form("--garbage-collection", "FACTOR", _by_factor(CollectionsScaled, 0)),
    Form("--tiny-kernels", "FACTOR", _by_factor(TinyKernelsScaled, 0)),
    Form("--barriers", "none", _by_word(WithoutBarriers())),
    Form("--micro-batches", "N", _micro_batches),
    Form("--virtual-stages", "V", _virtual_stages),
    Form("--move-layers", "'A>B'", _move_layers),
    Form("--stages", "balanced", _by_word(StagesBalanced())),
)

FORMS = {form.flag: form for form in _ALL_FORMS}
"""Flag -> how it is written, in the order of `--help`; `commands/whatif.py` has the same flags."""
