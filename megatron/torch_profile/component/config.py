# SPDX-License-Identifier: Apache-2.0
"""What a user asks for: a small typed document, checked before anything is built.

msgspec reads and checks it, because the base install has msgspec already and its structs refuse a
key that they do not know. PyYAML turns YAML into plain values; JSON needs nothing else.
"""

from __future__ import annotations

import difflib
import json
import re
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from megatron.torch_profile.component.overrides import override
from megatron.torch_trace.errors import UsageError

Dtype = Literal["float32", "float16", "bfloat16", "float64", "int64", "int32", "bool"]
Floating = Literal["float32", "float16", "bfloat16", "float64"]
Direction = Literal["forward", "forward-backward"]
CHOICES: dict[str, tuple[str, ...]] = {
    "dtype": get_args(Dtype),
    "autocast": get_args(Floating),
    "cast": get_args(Floating),
    "direction": get_args(Direction),
    "device": ("auto", "cpu", "cuda"),
}
"""Of keys that take one of a few words."""
_MOST_VARIANTS = 200


class Input(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One tensor that the target is called with.

    Args:
        shape: numbers, or names of `sizes`.
        dtype: that of the config if None.
        below: whole numbers from 0 to below this, a number or a name of `sizes`.
        gradient: whether a backward pass computes its gradient.
    """

    shape: list[int | str]
    dtype: Dtype | None = None
    below: int | str | None = None
    gradient: bool = True


class Compile(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """How torch.compile is called."""

    mode: str | None = None
    backend: str = "inductor"
    fullgraph: bool = False
    dynamic: bool | None = False


class Variant(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What one variant does otherwise than the config says.

    Args:
        compile: false, true, a mode of torch.compile, or its arguments.
        autocast: the dtype of torch.autocast.
        cast: the dtype to which parameters and inputs are cast after they are made.
        target: another target, for two implementations of one thing.
    """

    compile: bool | str | Compile = False
    autocast: Floating | None = None
    cast: Floating | None = None
    dtype: Floating | None = None
    direction: Direction | None = None
    target: str | None = None
    sizes: dict[str, int] = {}
    arguments: dict[str, Any] = {}


class Parallel(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """How ranks of torchrun are split, for ready components of megatron-core."""

    tensor: int = 1
    expert: int = 1
    context: int = 1


class Config(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A component, what it is called with, and how it is measured.

    Args:
        target: a ready component, or `package.module:name`, or `file.py:name`.
        arguments: of the ready component, of the class, or keywords of the function.
        sizes: numbers by name, for shapes; a ready component has its own names.
        inputs: of a function or a class; a ready component has its own.
        warmup, wait, measure: steps, in this order; `wait` steps run and are not measured.
        record: steps that are recorded for a trace after measuring; 0 for no trace.
        flush_l2: overwrite the GPU's L2 cache before each step.
        ranks: which ranks of torchrun record a trace.
        roofline: compare with the measured bandwidth and matmul rate of this device.
        stacks: record Python's stacks in traces.
        dir: where the run folder is made.
    """

    target: str
    arguments: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    inputs: list[Input] = []
    dtype: Floating = "float32"
    direction: Direction = "forward"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    parallel: Parallel = Parallel()
    warmup: int = 3
    wait: int = 0
    measure: int = 20
    record: int = 2
    flush_l2: bool = True
    ranks: list[int] = msgspec.field(default_factory=lambda: [0])
    roofline: bool = True
    stacks: bool = False
    seed: int = 1234
    dir: str = "torch_profile"
    variants: dict[str, Variant] = {}
    grid: dict[str, list[Any]] = {}


def read(what: str, changes: tuple[str, ...] = ()) -> Config:
    """The config of a file, or of a target alone, with overrides.

    Args:
        what: a path of a config, or a target.
        changes: `key=value`, where `sizes.sequence=256` goes into what lies inside.

    Raises:
        UsageError: a sentence about what is wrong, with the key.
    """
    where, document = _document(what)
    for change in changes:
        override(document, change)
    try:
        config = msgspec.convert(document, Config)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {_sentence(str(error), document)}") from None
    _check(config, where)
    return config


def snapshot(config: Config) -> dict[str, Any]:
    """The config as plain values, whole, as it is kept in the run folder."""
    plain: dict[str, Any] = msgspec.to_builtins(config)
    return plain


def _document(what: str) -> tuple[str, dict[str, Any]]:
    path = Path(what)
    if path.suffix not in (".yaml", ".yml", ".json"):
        return what, {"target": what}
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file; give a config, or a target.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({_first_line(error)}).") from None
    document = _json(path, text) if path.suffix == ".json" else _yaml(path, text)
    if not isinstance(document, dict):
        raise UsageError(f"{path}: holds no keys; it needs at least `target: NAME`.")
    return what, document


def _json(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(f"{path}: no JSON ({error}).") from None


def _yaml(path: Path, text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise UsageError(
            f"{path}: YAML needs PyYAML (pip install pyyaml); JSON does not."
        ) from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: no YAML ({' '.join(str(error).split())}).") from None


def _sentence(said: str, document: dict[str, Any]) -> str:
    """msgspec's words with the key first, and the nearest name of one that is not known."""
    where = re.search(r" - at `\$?\.?(?P<path>[^`]*)`$", said)
    path = where["path"] if where else ""
    problem = said[: where.start()] if where else said
    unknown = re.fullmatch(r"Object contains unknown field `(?P<name>.*)`", problem)
    if unknown:
        return _unknown(unknown["name"], path)
    missing = re.fullmatch(r"Object missing required field `(?P<name>.*)`", problem)
    if missing:
        inside = f"{path}: " if path else ""
        return f"{inside}the key `{missing['name']}` is missing."
    if "[...]" in path:
        path = _named(path, problem, document)
    choice = re.fullmatch(r"Invalid enum value '(?P<value>.*)'", problem)
    if choice:
        key = path.rpartition(".")[2]
        return f"{path}: {choice['value']!r}{nearest(choice['value'], list(CHOICES[key]))}"
    problem = problem.replace("`array`", "a list").replace("`object`", "keys with values")
    return f"{path}: {problem[0].lower()}{problem[1:]}."


def _named(path: str, problem: str, document: dict[str, Any]) -> str:
    """The path with the one name for `[...]` where there is only one, which msgspec leaves out."""
    first = path.split("[...]")[0]
    inside = document.get(first)
    names = list(inside) if isinstance(inside, dict) else []
    return path.replace("[...]", f".{names[0]}" if len(names) == 1 else " (one of them)", 1)


def _unknown(name: str, path: str) -> str:
    known = _keys(path)
    inside = f"{path.replace('[...]', ' (one of them)')}: " if path else ""
    return f"{inside}there is no key `{name}`{nearest(name, known)}"


def _keys(path: str) -> list[str]:
    kind: type[msgspec.Struct] = Config
    if path.startswith("variants"):
        kind = Compile if path.endswith("compile") else Variant
    elif path.startswith("inputs"):
        kind = Input
    elif path.startswith("parallel"):
        kind = Parallel
    return list(kind.__struct_fields__)


def nearest(name: str, known: list[str]) -> str:
    """`; did you mean ...?` for a name that is not known; all names where none is near."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean `{close[0]}`?" if close else f"; there are {', '.join(known)}."


def _check(config: Config, where: str) -> None:
    least = {"warmup": 0, "wait": 0, "measure": 2, "record": 0}
    for key, low in least.items():
        if getattr(config, key) < low:
            raise UsageError(f"{where}: {key}: {getattr(config, key)}; must be {low} or more.")
    for key, value in config.sizes.items():
        _check_size(where, f"sizes.{key}", value)
    for name, variant in config.variants.items():
        for key, value in variant.sizes.items():
            _check_size(where, f"variants.{name}.sizes.{key}", value)
    for key, value in msgspec.to_builtins(config.parallel).items():
        _check_size(where, f"parallel.{key}", value)
    points = max(1, len(config.variants))
    for key, values in config.grid.items():
        if not values:
            raise UsageError(f"{where}: grid.{key}: is empty; give the values to compare.")
        points *= len(values)
    if points > _MOST_VARIANTS:
        raise UsageError(
            f"{where}: variants times grid are {points:,}; at most {_MOST_VARIANTS} are compared."
        )


def _check_size(where: str, key: str, value: int) -> None:
    if value < 1:
        raise UsageError(f"{where}: {key}: {value}; must be 1 or more.")


def _first_line(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error).splitlines()[0]
