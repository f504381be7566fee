# SPDX-License-Identifier: Apache-2.0
"""`dataclass` and `field` as the standard library has them, made in a third of the time.

The standard library compiles six methods for every class. Of the 240 classes that an analysis
imports, that took longer than numpy does. Here `__init__` alone is compiled, since it is what runs
by the thousand; the other methods are the same functions for every class.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import field as field
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, slots=False, **others):
        """See `dataclasses.dataclass`.

        Fields without a place in `__init__`, or by keyword only, are the standard library's.

        Raises:
            TypeError: the class has such a field.
        """

        def made(one: type) -> type:
            if others:
                return dataclasses.dataclass(one, frozen=frozen, slots=slots, **others)
            return _made(one, frozen=frozen, slots=slots)

        return made if cls is None else made(cls)


Fields = tuple[dataclasses.Field[Any], ...]
Methods = dict[str, Callable[..., Any] | None]

_FACTORY = object()
"""Stands for a default that is made anew for every instance."""


def _made(cls: type, *, frozen: bool, slots: bool) -> Any:
    own = {name for name, value in cls.__dict__.items() if (name, value) != ("__hash__", None)}
    if cls.__doc__ is None:
        # The standard library would look at the signature, to write it here.
        cls.__doc__ = cls.__name__
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
    fields = dataclasses.fields(made)
    methods: Methods = {"__init__": _constructor(made, fields, frozen), "__repr__": _text(fields)}
    methods |= _comparison(fields, frozen)
    if frozen:
        methods |= _guards(made, fields)
    if frozen and slots:
        methods |= _pickling(fields)
    for name, method in methods.items():
        if name not in own:
            setattr(made, name, method)
    return made


def _constructor(made: type, fields: Fields, frozen: bool) -> Callable[..., None]:
    names: dict[str, Any] = {"SET": object.__setattr__, "FACTORY": _FACTORY}
    parameters, lines = ["self"], []
    for one in fields:
        if not one.init or one.kw_only:
            raise TypeError(f"{made.__name__}.{one.name}: take the standard library's dataclass")
        value, default = one.name, f"DEFAULT_{one.name}"
        if one.default is not dataclasses.MISSING:
            parameters.append(f"{one.name}={default}")
            names[default] = one.default
        elif one.default_factory is not dataclasses.MISSING:
            parameters.append(f"{one.name}=FACTORY")
            names[default] = one.default_factory
            value = f"{default}() if {one.name} is FACTORY else {one.name}"
        else:
            parameters.append(one.name)
        lines.append(
            f"SET(self, {one.name!r}, {value})" if frozen else f"self.{one.name} = {value}"
        )
    if hasattr(made, "__post_init__"):
        lines.append("self.__post_init__()")
    exec(f"def __init__({', '.join(parameters)}): {'; '.join(lines) or 'pass'}", names)
    constructor: Callable[..., None] = names["__init__"]
    constructor.__qualname__, constructor.__module__ = (
        f"{made.__qualname__}.__init__",
        made.__module__,
    )
    constructor.__annotations__ = {one.name: one.type for one in fields} | {"return": None}
    return constructor


def _text(fields: Fields) -> Callable[[Any], str]:
    names = [one.name for one in fields if one.repr]

    @recursive_repr()
    def text(self: Any) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{self.__class__.__qualname__}({values})"

    return text


def _comparison(fields: Fields, frozen: bool) -> Methods:
    compared = _values([one.name for one in fields if one.compare])

    def equal(self: Any, other: object) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return compared(self) == compared(other)

    def hashed(self: Any) -> int:
        return hash(compared(self))

    return {"__eq__": equal, "__hash__": hashed if frozen else None}


def _values(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """What gives the values of some fields of an instance."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda instance: tuple(getattr(instance, name) for name in names)


def _guards(made: Any, fields: Fields) -> Methods:
    names = {one.name for one in fields}

    def assign(self: Any, name: str, value: object) -> None:
        if type(self) is made or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(made, self).__setattr__(name, value)

    def delete(self: Any, name: str) -> None:
        if type(self) is made or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(made, self).__delattr__(name)

    return {"__setattr__": assign, "__delattr__": delete}


def _pickling(fields: Fields) -> Methods:
    """Without these a pickle would assign to fields."""
    names = [one.name for one in fields]

    def state(self: Any) -> list[Any]:
        return [getattr(self, name) for name in names]

    def restore(self: Any, state: list[Any]) -> None:
        for name, value in zip(names, state, strict=True):
            object.__setattr__(self, name, value)

    return {"__getstate__": state, "__setstate__": restore}
