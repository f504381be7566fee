# SPDX-License-Identifier: Apache-2.0
"""What is compared: each variant at each point of the grid, as a list of what to build."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import msgspec

from megatron.torch_profile.component.config import (
    CHOICES,
    Compile,
    Config,
    Direction,
    Floating,
    Variant,
    nearest,
)
from megatron.torch_trace.errors import UsageError

EAGER = "eager"
_SETTINGS = ("compile", "autocast", "cast", "dtype", "direction", "target")
_INSIDE = ("sizes", "arguments")


@dataclass(frozen=True, slots=True)
class Case:
    """One variant at one point of the grid: all that is needed to build its step.

    Args:
        variant: its name in the config.
        point: what the grid says, (key, value).
        compile: None where it is not compiled.
    """

    variant: str
    point: tuple[tuple[str, Any], ...]
    target: str
    sizes: dict[str, int]
    arguments: dict[str, Any]
    dtype: Floating
    direction: Direction
    compile: Compile | None
    autocast: Floating | None
    cast: Floating | None

    @property
    def name(self) -> str:
        """What tables call it: `compiled, sequence 4096`."""
        told = [f"{key.rpartition('.')[2]} {_shown(value)}" for key, value in self.point]
        return ", ".join([self.variant, *told] if self.variant else told)


def cases(config: Config) -> list[Case]:
    """All cases; each point of the grid has its variants next to each other.

    Raises:
        UsageError: a key of the grid, or a value there, is none that a variant can have.
    """
    variants = config.variants or {"" if config.grid else EAGER: Variant()}
    points = [
        tuple(zip(config.grid, values, strict=True)) for values in product(*config.grid.values())
    ]
    return [
        _case(config, name, _at(variant, point), point)
        for point in points
        for name, variant in variants.items()
    ]


def baseline_of(one: Case, all_cases: list[Case]) -> Case:
    """What a case is compared with: the first variant at its point, else the first of all."""
    same = [other for other in all_cases if other.point == one.point]
    return same[0] if len(same) > 1 else all_cases[0]


def _at(variant: Variant, point: tuple[tuple[str, Any], ...]) -> Variant:
    plain: dict[str, Any] = msgspec.to_builtins(variant)
    for key, value in point:
        folder, _, name = key.partition(".")
        if name and folder in _INSIDE:
            plain[folder] = {**plain[folder], name: value}
        elif key in _SETTINGS:
            plain[key] = value
        else:
            known = [*_SETTINGS, *(f"{one}.NAME" for one in _INSIDE)]
            raise UsageError(f"grid.{key}: nothing to vary by this name{nearest(key, known)}")
    try:
        return msgspec.convert(plain, Variant)
    except msgspec.ValidationError as error:
        told = ", ".join(f"{key}: {value!r}" for key, value in point)
        wrong = [(k, v) for k, v in point if k in CHOICES and v not in CHOICES[k]]
        if wrong:
            key, value = wrong[0]
            said = f"{key}: {value!r}{nearest(str(value), list(CHOICES[key]))}"
            raise UsageError(f"grid ({told}): {said}") from None
        raise UsageError(f"grid ({told}): {str(error).partition(' - at')[0].lower()}.") from None


def _case(config: Config, name: str, variant: Variant, point: tuple[tuple[str, Any], ...]) -> Case:
    for key, value in variant.sizes.items():
        if value < 1:
            raise UsageError(f"sizes.{key}: {value}; must be 1 or more.")
    return Case(
        variant=name,
        point=point,
        target=variant.target or config.target,
        sizes={**config.sizes, **variant.sizes},
        arguments={**config.arguments, **variant.arguments},
        dtype=variant.dtype or config.dtype,
        direction=variant.direction or config.direction,
        compile=_compile(variant.compile),
        autocast=variant.autocast,
        cast=variant.cast,
    )


def _compile(asked: bool | str | Compile) -> Compile | None:
    if asked is False or asked == "off":
        return None
    if asked is True or asked == "default":
        return Compile()
    return Compile(mode=asked) if isinstance(asked, str) else asked


def _shown(value: Any) -> str:
    return (
        {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)
    )
