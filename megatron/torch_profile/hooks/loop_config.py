# SPDX-License-Identifier: Apache-2.0
"""Where loops with parsers of their own have our flags from: their code, a YAML file, environment.

    TorchProfileConfig(enabled=True, ranks=["0-7"])     in code, given to attach()
    ranks: [0-7]                                        in YAML, by the names of its fields
    MEGATRON_TORCH_PROFILE_RANKS=0-7                    in the environment, as on a command line

What stands later in this list wins, field by field, so a job's environment can switch on what is
written nowhere else. `MEGATRON_TORCH_PROFILE=1` is `enabled`.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import Field, asdict, fields
from pathlib import Path
from typing import Any

from megatron.torch_profile.config import TorchProfileConfig
from megatron.torch_profile.hooks.command_line import of_command_line
from megatron.torch_trace.errors import UsageError

PREFIX = "MEGATRON_TORCH_PROFILE"
_FILE = f"{PREFIX}_CONFIG"
_SECTION = "torch_profile"
_ON, _OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")
_FIELDS = {field.name: field for field in fields(TorchProfileConfig) if field.name != "help"}

Given = TorchProfileConfig | Mapping[str, Any] | str | Path | None


def fields_of(given: Given, environment: Mapping[str, str]) -> dict[str, Any]:
    """The value of every field; types of those from YAML or a mapping are not checked here.

    Args:
        given: by the loop's code: a configuration, its fields, or a YAML file; None takes the
            flags in the command line, which a loop may let pass.
        environment: of this process.

    Raises:
        UsageError: one sentence for the user.
    """
    base = given if isinstance(given, TorchProfileConfig) else TorchProfileConfig()
    values = asdict(of_command_line() if given is None else base)
    if isinstance(given, Mapping):
        values |= _known(given, "attach(config=...)")
    elif isinstance(given, (str, Path)):
        values |= _of_yaml(Path(given), "attach(config=...)")
    if file := environment.get(_FILE):
        values |= _of_yaml(Path(file), _FILE)
    idle: list[str] = []
    for name, text in sorted(environment.items()):
        if name != _FILE and (name == PREFIX or name.startswith(f"{PREFIX}_")):
            field = _FIELDS[_field_named(name)]
            values[field.name] = _value(field, name, text)
            idle.append(name)
    if not values["enabled"] and idle and PREFIX not in environment:
        raise UsageError(f"{', '.join(idle)}: does nothing without {PREFIX}=1; add {PREFIX}=1.")
    return values


def _field_named(variable: str) -> str:
    name = variable.removeprefix(PREFIX).removeprefix("_").lower() or "enabled"
    if name not in _FIELDS:
        raise UsageError(f"{variable}: there is no such variable{_meant(name, f'{PREFIX}_')}.")
    return name


def _meant(name: str, prefix: str = "") -> str:
    close = difflib.get_close_matches(name, _FIELDS, n=1)
    if not close:
        return ""
    return f"; the nearest is {prefix}{close[0].upper() if prefix else close[0]}"


def _value(field: Field[Any], variable: str, text: str) -> Any:
    """A field as its type has it, from the words of a variable."""
    kind = str(field.type)
    optional = kind.endswith(" | None")
    kind = kind.removesuffix(" | None")
    if kind == "bool":
        if text.strip().lower() in (*_ON, *_OFF):
            return text.strip().lower() in _ON
        raise UsageError(f"{variable}={text}: must be 1 or 0.")
    if optional and not text.strip():
        return None
    try:
        if kind == "int":
            return int(text)
        if kind == "float":
            return float(text)
        words = shlex.split(text)
    except ValueError:
        wanted = {"int": "a whole number", "float": "a number"}.get(kind, "words in whole quotes")
        raise UsageError(f"{variable}={text}: must be {wanted}.") from None
    several = kind.startswith("list")
    _check_choices(field, variable, text, words if several else [text])
    return words if several else text


def _check_choices(field: Field[Any], variable: str, text: str, words: Sequence[str]) -> None:
    choices = field.metadata["argparse"].get("choices")
    if choices and not all(word in choices for word in words):
        some = "some" if str(field.type).startswith("list") else "one"
        raise UsageError(f"{variable}={text}: must be {some} of {', '.join(choices)}.")


def _known(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    for name in given:
        if name not in _FIELDS:
            raise UsageError(f"{where}: there is no field {name}{_meant(str(name))}.")
    # OmegaConf has lists of a class of its own.
    return {name: _plain(value) for name, value in given.items()}


def _plain(value: Any) -> Any:
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    return list(value) if is_list else value


def _of_yaml(path: Path, where: str) -> dict[str, Any]:
    """The fields in a YAML file, or in its section `torch_profile`."""
    try:
        import yaml
    except ImportError:
        raise UsageError(
            f"{where} {path}: reading YAML needs PyYAML, which is not installed here; use "
            f"{PREFIX}_* variables, or install pyyaml."
        ) from None
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise UsageError(f"{where} {path}: cannot be read ({why}).") from None
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark else ""
        raise UsageError(f"{where} {path}: is no YAML{line}.") from None
    if isinstance(content, Mapping) and isinstance(content.get(_SECTION), Mapping):
        content = content[_SECTION]
    if not isinstance(content, Mapping):
        raise UsageError(f"{where} {path}: must hold fields, such as `enabled: true`.")
    return _known(content, f"{where} {path}")
