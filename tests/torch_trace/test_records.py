# SPDX-License-Identifier: Apache-2.0
"""A dataclass of this package is as good as one of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from megatron.torch_trace.records import dataclass, field


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel."""

    name: str
    time_ns: int
    bytes: int = 0
    ranks: list[int] = field(default_factory=list)
    note: str | None = field(default=None, compare=False)


@dataclass(slots=True)
class Sum:
    time_ns: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    pass


@dataclass(frozen=True, slots=True)
class Named(Mark):
    name: str

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("no name")


class Loose(Named):
    """Not a dataclass itself, so it has attributes of its own."""


@dataclass(slots=True)
class Odd:
    name: str

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 7

    def __repr__(self) -> str:
        return "odd"


@dataclass(slots=True)
class Tree:
    below: list[Tree]


def standard() -> type[Any]:
    """`Kernel` as the standard library makes it."""
    found: type[Any] = dataclasses.make_dataclass(
        "Kernel",
        [(one.name, one.type, _again(one)) for one in dataclasses.fields(Kernel)],
        frozen=True,
        slots=True,
    )
    return found


def _again(one: dataclasses.Field[Any]) -> Any:
    if one.default_factory is not dataclasses.MISSING:
        return field(default_factory=one.default_factory)
    return field(default=one.default, compare=one.compare)


ANSWERS: dict[str, Callable[[Any], object]] = {
    "text": lambda kind: repr(kind("gemm", 3, ranks=[1])),
    "fields": lambda kind: [one.name for one in dataclasses.fields(kind)],
    "signature": lambda kind: [*inspect.signature(kind).parameters],
    "equal": lambda kind: kind("gemm", 3, note="a") == kind("gemm", 3, note="b"),
    "other values": lambda kind: kind("gemm", 3) == kind("gemm", 4),
    "another class": lambda kind: kind("gemm", 3) == ("gemm", 3, 0, []),
    "as a dictionary": lambda kind: dataclasses.asdict(kind("gemm", 3, ranks=[2])),
    "replaced": lambda kind: repr(dataclasses.replace(kind("gemm", 3), bytes=9)),
    "matched": lambda kind: kind.__match_args__,
    "slots": lambda kind: kind.__slots__,
    "hash": lambda kind: hash(kind("gemm", 3, ranks=(1,))) == hash(("gemm", 3, 0, (1,))),
    "own list each": lambda kind: kind("a", 1).ranks is kind("b", 1).ranks,
}


@pytest.mark.parametrize("question", ANSWERS)
def test_the_answer_is_the_standard_librarys(question: str) -> None:
    ask = ANSWERS[question]
    assert ask(Kernel) == ask(standard())


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda one: _pickled(one)])
@pytest.mark.parametrize("one", [Kernel("gemm", 3, ranks=[1]), Sum(4), Mark(), Named("x")])
def test_a_copy_is_equal(again: Callable[[object], object], one: object) -> None:
    assert again(one) == one


def _pickled(one: object) -> object:
    return pickle.loads(pickle.dumps(one))


def test_a_frozen_one_stays_as_it_is() -> None:
    kernel = Kernel("gemm", 3)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'name'"):
        kernel.name = "other"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'name'"):
        del kernel.name
    assert kernel == Kernel("gemm", 3)


def test_one_that_is_not_frozen_can_be_changed_and_has_no_hash() -> None:
    total = Sum()
    total.time_ns += 3
    assert total == Sum(3)
    with pytest.raises(TypeError, match="unhashable"):
        hash(total)


def test_a_class_below_may_have_attributes_but_not_change_fields() -> None:
    loose = Loose("x")
    loose.more = 1  # type: ignore[attr-defined]
    with pytest.raises(dataclasses.FrozenInstanceError):
        loose.name = "y"  # type: ignore[misc]
    assert (loose.name, loose.more) == ("x", 1)  # type: ignore[attr-defined]
    assert loose != Named("x")


def test_what_a_class_defines_itself_stays() -> None:
    assert (Odd("a") == Odd("b"), hash(Odd("a")), repr(Odd("a"))) == (True, 7, "odd")


def test_what_comes_after_the_fields_is_called() -> None:
    with pytest.raises(ValueError, match="no name"):
        Named("")


def test_a_text_of_a_circle_ends() -> None:
    tree = Tree([])
    tree.below.append(tree)
    assert repr(tree) == "Tree(below=[...])"


def test_a_value_that_is_missing_is_the_callers_mistake() -> None:
    with pytest.raises(TypeError, match=r"Kernel.__init__\(\) missing 1 required .*'time_ns'"):
        Kernel("gemm")  # type: ignore[call-arg]


def test_a_field_that_is_not_supported_is_said() -> None:
    with pytest.raises(TypeError, match=r"Part\.total: take the standard library's dataclass"):

        @dataclass(slots=True)
        class Part:
            total: int = field(init=False)


def test_an_order_is_the_standard_librarys() -> None:
    @dataclass(frozen=True, order=True)
    class Window:
        first: int

    assert Window(1) < Window(2)
