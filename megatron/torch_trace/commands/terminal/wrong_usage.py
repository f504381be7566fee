# SPDX-License-Identifier: Apache-2.0
"""A command line that click refuses, in one sentence: the flag, its value, and what is right."""

from __future__ import annotations

import re
from difflib import get_close_matches

import click

_VALUE = re.compile(r"^'?(?P<value>.*?)'? is not ")


def sentence(error: click.UsageError) -> str:
    """The sentence; what click says itself where there is no better one."""
    context = error.ctx
    command = (context.info_name if context and context.parent else None) or "torch-trace"
    if isinstance(error, click.MissingParameter) and error.param is not None:
        return f"{command}: {_name(error.param)} is missing; see {_help(command)}."
    if isinstance(error, click.NoSuchOption):
        known = [o for p in context.command.params for o in p.opts] if context else []
        near = get_close_matches(error.option_name, known, n=1)
        right = f"did you mean {near[0]}?" if near else f"see {_help(command)}."
        return f"{error.option_name}: {command} has no such option; {right}"
    if isinstance(error, click.BadOptionUsage):
        return f"{error.option_name}: needs a value."
    if isinstance(error, click.BadParameter) and error.param is not None:
        found = _VALUE.match(error.message)
        value = f" {found['value']}" if found else ""
        return f"{_name(error.param)}{value}: {_right(error.param.type) or error.message}"
    said = error.message.rstrip(".")
    return f"{command}: {said[:1].lower()}{said[1:]}; see {_help(command)}."


def _name(param: click.Parameter) -> str:
    if isinstance(param, click.Option):
        return max(param.opts, key=len)
    return (param.metavar or param.name or "").removesuffix("...").upper()


def _help(command: str) -> str:
    return "torch-trace --help" if command == "torch-trace" else f"torch-trace {command} --help"


def _right(kind: object) -> str:
    """What a value of this type would be."""
    if isinstance(kind, click.Choice):
        return f"choose from {', '.join(map(str, kind.choices))}."
    if isinstance(kind, click.IntRange):
        if kind.max is not None:
            return f"must be a whole number from {kind.min} to {kind.max}."
        return f"must be a whole number, {kind.min} or more."
    if isinstance(kind, click.FloatRange):
        return f"must be a number above {kind.min:g}."
    return "must be a whole number." if kind is click.INT else ""
