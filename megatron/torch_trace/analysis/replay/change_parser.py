# SPDX-License-Identifier: Apache-2.0
"""From a flag and its value to a change; of a wrong one, a sentence with the nearest right one."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NoReturn

from megatron.torch_trace.analysis.replay.change import (
    ALL,
    COPY_KINDS,
    Change,
    CommunicationScaled,
    CopiesScaled,
    KernelsScaled,
    LaunchScaled,
    LayersMoved,
    MicroBatches,
    ModuleScaled,
    OperatorsScaled,
    Overlapped,
    RankAsMedian,
    StagesBalanced,
    VirtualStages,
    WithoutSynchronisation,
)
from megatron.torch_trace.errors import UsageError

_DIMENSIONS = ("tp", "pp", "dp", "cp", "ep", "edp", "etp", "mp", ALL)
"""From these comes the nearest right one; a trace may have others, such as `tp-cp`."""
_DIMENSION = r"[A-Za-z_][\w.-]*"
_NUMBER = r"\d+(?:\.\d*)?|\.\d+"
_USUAL = 0.5
_MOST = 1 << 20


class _WrongError(ValueError):
    """A value that says no change; its text is the nearest one that does."""


@dataclass(frozen=True, slots=True)
class Form:
    """How a change is written.

    Args:
        flag: `--rank`.
        metavar: what stands behind it, for `--help`.
        help: one line for `--help`.
        read: a value to the change; raises what `_WrongError` is for.
    """

    flag: str
    metavar: str
    help: str
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
            f"{flag} {value}: is not a change that can be simulated; did you mean {flag} "
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


def checked(change: Change, what: str, value: str, there: Iterable[str]) -> None:
    """Refuse a change of something that the recording does not have.

    Args:
        change: whose text the sentence begins with.
        what: a noun for `value`: `dimension`, `rank`.
        value: what the change names.
        there: what the recording has.

    Raises:
        UsageError: `value` is not there.
    """
    known = list(there)
    if value in known:
        return
    near = get_close_matches(value, known, n=1, cutoff=0.4)
    if near:
        right = f"did you mean {change.text.replace(value, near[0], 1)}?"
    else:
        listed = ", ".join(known[:16]) + (", ..." if len(known) > 16 else "")
        right = f"the recording has {listed}." if known else "the recording has none."
    raise UsageError(f"{change.text}: no {what} {value} was recorded; {right}")


def _nearest_flag(flag: str) -> str:
    near = get_close_matches(f"--{flag.lstrip('-')}", FORMS, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(FORMS)}."


def _rank(value: str) -> Change:
    match = re.fullmatch(r"(\d+)\s*=\s*median", value)
    if match and int(match[1]) < _MOST:
        return RankAsMedian(int(match[1]))
    raise _WrongError(f"{_first_number(value, 0)}=median")


def _comm(value: str) -> Change:
    name, factor = _scaled(value)
    if name is not None and factor is not None and re.fullmatch(_DIMENSION, name):
        return CommunicationScaled(name.lower(), factor)
    raise _WrongError(f"{_dimension_near(value)}*{_factor_near(value):g}")


def _overlap(value: str) -> Change:
    if re.fullmatch(_DIMENSION, value):
        return Overlapped(value.lower())
    raise _WrongError(_dimension_near(value))


def _launch(value: str) -> Change:
    factor = _factor(value.removeprefix("*"))
    if factor is not None:
        return LaunchScaled(factor)
    raise _WrongError(f"{_factor_near(value, 0):g}")


def _operators(value: str) -> Change:
    factor = _factor(value.removeprefix("*"))
    if factor is not None:
        return OperatorsScaled(factor)
    raise _WrongError(f"{_factor_near(value):g}")


def _kernel(value: str) -> Change:
    pattern, factor = _scaled(value)
    if pattern and factor is not None:
        try:
            re.compile(pattern)
        except re.error:
            raise _WrongError(f"{re.escape(pattern)}*{factor:g}") from None
        return KernelsScaled(pattern, factor)
    raise _WrongError(f"{_name_near(value, 'gemm')}*{_factor_near(value):g}")


def _module(value: str) -> Change:
    name, factor = _scaled(value)
    if name and factor is not None and re.fullmatch(r"[\w.]+", name):
        return ModuleScaled(name, factor)
    raise _WrongError(f"{_name_near(value, 'mlp')}*{_factor_near(value):g}")


def _copies(value: str) -> Change:
    name, sign, text = value.partition("=")
    factor = _factor(text)
    if not sign:
        scaled, factor = _scaled(value)
        name = scaled or ""
    if name.strip().lower() in COPY_KINDS and factor is not None:
        return CopiesScaled(name.strip().lower(), factor)
    word = re.match(r"[A-Za-z]*", value)
    near = get_close_matches(word[0].lower() if word else "", COPY_KINDS, n=1)
    raise _WrongError(f"{near[0] if near else COPY_KINDS[0]}={_factor_near(value, 0):g}")


def _sync(value: str) -> Change:
    if value == "none":
        return WithoutSynchronisation()
    raise _WrongError("none")


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


def _stages(value: str) -> Change:
    if value == "balanced":
        return StagesBalanced()
    raise _WrongError("balanced")


def _count(value: str, usual: int) -> int:
    if re.fullmatch(r"\d+", value) and 0 < int(value) < _MOST:
        return int(value)
    _wrong_count(value, usual)


def _wrong_count(value: str, usual: int) -> NoReturn:
    raise _WrongError(str(min(_first_number(value, usual) or usual, _MOST - 1)))


def _scaled(value: str) -> tuple[str | None, float | None]:
    name, sign, text = value.rpartition("*")
    return (name.strip(), _factor(text)) if sign else (None, None)


def _factor(text: str) -> float | None:
    if not re.fullmatch(_NUMBER, text.strip()):
        return None
    number = float(text)
    return number if math.isfinite(number) else None


def _factor_near(value: str, usual: float = _USUAL) -> float:
    """The factor that was meant: of `dp*50%` and `dp*0,5` a half."""
    found = re.findall(rf"(?<![\w.])({_NUMBER})(\s*%)?", value.replace(",", "."))
    if not found:
        return usual
    number, percent = found[-1]
    return min(float(number), 1e6) / (100 if percent else 1)


def _dimension_near(value: str) -> str:
    word = re.match(r"[A-Za-z_-]*", value)
    near = get_close_matches(word[0].lower() if word else "", _DIMENSIONS, n=1, cutoff=0.3)
    return near[0] if near else "dp"


def _name_near(value: str, usual: str) -> str:
    word = re.match(r"[A-Za-z_][\w.]*", value)
    return word[0] if word else usual


def _first_number(value: str, usual: int) -> int:
    found = re.search(r"\d+", value)
    return int(found[0]) if found else usual


_ALL_FORMS: Sequence[Form] = (
    Form("--rank", "R=median", "The CPU of rank R takes as long as that of its peers.", _rank),
    Form("--comm", "DIM*FACTOR", "Transfers of a dimension take FACTOR times as long.", _comm),
    Form("--overlap", "DIM", "Compute does not wait for communication of a dimension.", _overlap),
    Form("--launch", "FACTOR", "Launches take FACTOR times as long; 0: CUDA graphs.", _launch),
    Form("--cpu-operators", "FACTOR", "The CPU's operators take FACTOR times as long.", _operators),
    Form("--kernel", "REGEX*FACTOR", "Kernels with these names take FACTOR times.", _kernel),
    Form("--module", "NAME*FACTOR", "Modules of this name or class take FACTOR times.", _module),
    Form("--copies", "KIND=FACTOR", f"Copies of a kind: {', '.join(COPY_KINDS)}.", _copies),
    Form("--sync", "none", "The CPU never waits for the GPU.", _sync),
    Form("--micro-batches", "N", "N micro-batches of the recorded size.", _micro_batches),
    Form("--virtual-stages", "V", "V virtual stages on each pipeline rank.", _virtual_stages),
    Form("--move-layers", "'A>B'", "A layer goes from stage A to B; 'A>B*2': two.", _move_layers),
    Form("--stages", "balanced", "All pipeline stages take equally long.", _stages),
)

FORMS = {form.flag: form for form in _ALL_FORMS}
"""Flag -> how it is written, in the order of `--help`."""
