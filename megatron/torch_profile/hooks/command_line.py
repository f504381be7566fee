# SPDX-License-Identifier: Apache-2.0
"""The --torch-profile* flags in argparse, without Megatron: in its parser, alone, and as help."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Sequence
from dataclasses import Field, fields
from typing import Any, NoReturn

from megatron.torch_profile.config import FLAG, TorchProfileConfig, argument_of, flag_of
from megatron.torch_profile.log import environment_rank, exit_with
from megatron.torch_trace.errors import UsageError

HELP = flag_of("help")
_FIELDS = fields(TorchProfileConfig)


def add_flags(group: argparse._ActionsContainer) -> None:
    """Add every flag of `TorchProfileConfig`."""
    for field in _FIELDS:
        add_flag(group, field, flag_of(field.name), argument_of(field.name))


def add_flag(
    group: argparse._ActionsContainer, field: Field[Any], flag: str, argument: str
) -> None:
    """Add a field of a configuration as a flag: its type, default and help."""
    options = dict(field.metadata["argparse"])
    default = field.default_factory() if callable(field.default_factory) else field.default
    if flag == HELP:
        options |= {"action": _PrintHelp, "nargs": 0, "default": False}
    elif field.type == "bool":
        options["action"] = "store_true"
    else:
        options["default"] = default
        if field.type in ("int", "int | None"):
            options["type"] = int
        elif field.type in ("float", "float | None"):
            options["type"] = float
    text = field.metadata["help"].replace("%", "%%")
    if default is not None and default is not False:
        shown = " ".join(default) if isinstance(default, list) else default
        text += f" Default: {shown}."
    group.add_argument(flag, dest=argument, help=text, **options)


def of_command_line(words: Sequence[str] | None = None) -> TorchProfileConfig:
    """What the flags in a command line ask for, whoever parses the rest; not checked.

    Args:
        words: the command line; the process's own by default.
    """
    parser = _OurParser(allow_abbrev=False, add_help=False)
    add_flags(parser)
    given, _ = parser.parse_known_args(sys.argv[1:] if words is None else words)
    return TorchProfileConfig(**{f.name: getattr(given, argument_of(f.name)) for f in _FIELDS})


class _OurParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        exit_with(UsageError(with_suggestion(message)))


def help_text() -> str:
    """The help of our flags alone."""
    parser = argparse.ArgumentParser(prog="pretrain_gpt.py", add_help=False, usage=_USAGE)
    add_flags(parser.add_argument_group(title="torch profile"))
    return parser.format_help()


_USAGE = (
    "python -m megatron.torch_profile pretrain_gpt.py ARGS... --torch-profile [...]\n"
    "(docs/flags.md says more about every flag)"
)


class _PrintHelp(argparse.Action):
    def __call__(self, *_: Any) -> NoReturn:
        if environment_rank() == 0:
            print(help_text())
        raise SystemExit(0)


def with_suggestion(message: str) -> str:
    """argparse's complaint about one of our flags, with the flag that was meant."""
    unknown = re.findall(rf"{FLAG}[\w-]*", message)
    if "unrecognized" in message and unknown:
        flags = [flag_of(field.name) for field in _FIELDS]
        close = difflib.get_close_matches(unknown[0], flags, n=1)
        known = f"did you mean {close[0]}?" if close else f"known are {', '.join(flags)}."
        return f"unknown flag {unknown[0]}: {known}"
    return f"{message}."
