# SPDX-License-Identifier: Apache-2.0
"""Our flags in Megatron's own parser, and what is checked when it has parsed.

Megatron builds its parser itself, so the group is added to the parser that passes by
(`add_group`), and the same parser tells when parsing is done: that is the earliest moment at which
a mistake can be named, in every version, whoever calls the parser.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import Field, fields
from typing import Any, NoReturn

from megatron.torch_profile.config import (
    FLAG,
    TorchProfileConfig,
    argument_of,
    flag_of,
)
from megatron.torch_profile.hooks import flight_recorder
from megatron.torch_profile.hooks.command_line import (
    add_flag,
    add_flags,
    of_command_line,
    with_suggestion,
)
from megatron.torch_profile.log import exit_with
from megatron.torch_profile.metrics_config import MetricsConfig
from megatron.torch_profile.plan import capture_plan
from megatron.torch_trace.errors import UsageError

_parsed: TorchProfileConfig | None = None
"""The command line's flags, for `--yaml-cfg`: it replaces Megatron's namespace after parsing."""
_parsed_metrics = MetricsConfig()

parser_seen = False
"""Whether Megatron's parser, or what a fork put in its place, has passed by."""
_LOCAL_RANK = re.compile(r"^--local[-_]rank(?==|$)")


def add_group(
    parser: argparse.ArgumentParser,
    *,
    where: Any = None,
    after_parsing: Sequence[Callable[[argparse.Namespace], None]] = (),
) -> argparse.ArgumentParser:
    """Add the `--torch-profile*` flags to Megatron's parser and check them when it has parsed.

    Args:
        parser: Megatron's parser, under construction.
        where: the module that builds it, to notice a fork that defines these flags itself.
        after_parsing: called with the namespace before Megatron validates it.

    Returns:
        The same parser.
    """
    global parser_seen
    parser_seen = True
    if _defines_flags(parser, where):
        exit_with(
            UsageError(
                f"this Megatron defines {FLAG} flags of its own "
                f"({getattr(where, '__file__', 'its argument parser')}); run it without "
                "megatron.torch_profile to use them, or take them out to use ours."
            )
        )
    group = parser.add_argument_group(title="torch profile")
    add_flags(group)
    _watch(parser, after_parsing)
    return parser


def config_of(args: Any) -> TorchProfileConfig:
    """The configuration that a namespace holds, whether argparse, YAML or a program made it.

    What the namespace lacks was given on the command line, or has its default.
    """
    base = _parsed or (TorchProfileConfig() if parser_seen else of_command_line())
    values = {f.name: getattr(args, argument_of(f.name), getattr(base, f.name)) for f in _FIELDS}
    # YAML and programs write lists of numbers where the command line gives words.
    for name in ("ranks", "iterations", "activities", "spans", "trigger", "trigger_ranks"):
        value = values[name]
        if value is not None:
            words = value if isinstance(value, (list, tuple)) else [value]
            values[name] = [str(word) for word in words]
    for field in _FIELDS:
        if values["enabled"] and (wanted := _wanted_instead(field, values[field.name])):
            exit_with(UsageError(f"{flag_of(field.name)} {values[field.name]}: {wanted}."))
    return TorchProfileConfig(**values).with_preset()


def _wanted_instead(field: Field[Any], value: Any) -> str | None:
    """What argparse would have refused, and YAML and programs may hold; None if it is right."""
    if value is None and str(field.type).endswith("None"):
        return None
    whole = isinstance(value, int) and not isinstance(value, bool)
    if field.type in ("int", "int | None") and not whole:
        return "must be a whole number"
    if field.type in ("float", "float | None") and (
        isinstance(value, bool) or not isinstance(value, (int, float))
    ):
        return "must be a number"
    if field.type == "bool" and not isinstance(value, bool):
        return "must be true or false"
    choices = field.metadata["argparse"].get("choices")
    several = str(field.type).startswith("list")
    words = value if several else [value]
    if choices and not all(word in choices for word in words):
        return f"must be {'some' if several else 'one'} of {', '.join(choices)}"
    return None


def metrics_of(args: Any) -> MetricsConfig:
    """What a namespace asks for in numbers of the run; what it lacks, the command line's."""
    base = _parsed_metrics
    return MetricsConfig(
        **{f.name: getattr(args, f.name, getattr(base, f.name)) for f in fields(MetricsConfig)}
    )


def _add_metrics(parser: argparse.ArgumentParser) -> list[str]:
    """Add the flags of `MetricsConfig` that this Megatron lacks, and return their arguments.

    Only a parser that parses is complete: Megatron adds groups after the one ours follow.
    """
    group = parser.add_argument_group(title="metrics of the run")
    ours = []
    for field in fields(MetricsConfig):
        flag = f"--{field.name.replace('_', '-')}"
        if flag not in parser._option_string_actions:
            add_flag(group, field, flag, field.name)
            ours.append(field.name)
    return ours


def _check_metrics(namespace: argparse.Namespace, ours: Sequence[str]) -> None:
    global _parsed_metrics
    config = _parsed_metrics = metrics_of(namespace)
    for name in ours:
        value = getattr(config, name)
        if value is not None and value is not False and not value > 0:
            exit_with(UsageError(f"--{name.replace('_', '-')} {value}: must be more than 0."))
        # Without the flag Megatron's arguments are upstream's.
        if not value:
            delattr(namespace, name)


def _watch(
    parser: argparse.ArgumentParser,
    after_parsing: Sequence[Callable[[argparse.Namespace], None]],
) -> None:
    # Set on this one parser, not on the class: nobody else's parser is touched.
    parse, error, format_help = parser.parse_known_args, parser.error, parser.format_help
    ours: list[str] = []
    complete = False

    def parse_and_check(*args: Any, **kwargs: Any) -> tuple[argparse.Namespace, list[str]]:
        nonlocal complete
        if not complete:
            complete = True
            ours.extend(_add_metrics(parser))
        words = args[0] if args else kwargs.get("args")
        if words is None and args:
            args = (_respelt_local_rank(parser, sys.argv[1:]), *args[1:])
        elif words is None:
            kwargs["args"] = _respelt_local_rank(parser, sys.argv[1:])
        namespace, rest = parse(*args, **kwargs)
        if words is None or list(words) == sys.argv[1:] or not _add_command_line(namespace):
            _check(namespace)
        _check_metrics(namespace, ours)
        for callback in after_parsing:
            callback(namespace)
        return namespace, rest

    def short_error(message: str) -> NoReturn:
        # Megatron's usage is hundreds of lines long and would hide the sentence.
        if FLAG in message:
            exit_with(UsageError(with_suggestion(message)))
        error(message)

    def help_that_formats() -> str:
        try:
            return format_help()
        except (KeyError, TypeError, ValueError):
            # Some versions of Megatron write a bare % in a help text, on which --help dies.
            for action in parser._actions:
                _escape_bare_percent(action)
            return format_help()

    parser.format_help = help_that_formats  # type: ignore[method-assign]
    parser.parse_known_args = parse_and_check  # type: ignore[method-assign,assignment]
    parser.error = short_error  # type: ignore[method-assign]


def _respelt_local_rank(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """Launchers write --local-rank or --local_rank, and each Megatron knows one of the two."""
    known = [flag for flag in parser._option_string_actions if _LOCAL_RANK.match(flag)]
    if len(known) != 1:
        return list(words)
    return [_LOCAL_RANK.sub(known[0], word, count=1) for word in words]


def _add_command_line(namespace: argparse.Namespace) -> bool:
    """A fork's launcher that parses words of its own keeps our flags from the command line.

    Returns:
        Whether there were any. The fork may still change what they are checked with, so that is
        done when training begins.
    """
    global _parsed
    config = of_command_line()
    if getattr(namespace, argument_of("enabled"), False) or not config.enabled:
        return False
    _parsed = config
    for field in _FIELDS:
        setattr(namespace, argument_of(field.name), getattr(config, field.name))
    return True


def _escape_bare_percent(action: argparse.Action) -> None:
    try:
        (action.help or "") % dict(vars(action), prog="", type="", choices="")
    except (KeyError, TypeError, ValueError):
        action.help = (action.help or "").replace("%", "%%")


def _check(namespace: argparse.Namespace) -> None:
    global _parsed
    config = config_of(namespace)
    _parsed = config if config.enabled else None
    if not config.enabled:
        # Megatron prints, logs and saves its arguments: without the flag they are upstream's.
        for field in _FIELDS:
            delattr(namespace, argument_of(field.name))
        unused = sorted(
            {word.partition("=")[0] for word in sys.argv[1:] if word.startswith(f"{FLAG}-")}
        )
        # A YAML file may hold the switch itself.
        if unused and not getattr(namespace, "yaml_cfg", None):
            exit_with(UsageError(f"{', '.join(unused)}: does nothing without {FLAG}; add {FLAG}."))
        return
    try:
        capture_plan.check(config, namespace)
    except UsageError as error:
        exit_with(error)
    if config.on_hang is not None and "torch" in sys.modules:
        flight_recorder.switch_on(sys.modules["torch"].__version__)


def _defines_flags(parser: argparse.ArgumentParser, where: Any) -> bool:
    if FLAG in parser._option_string_actions:
        return True
    try:
        # The fork adds its flags after the group this is called from, where argparse would raise.
        return (
            bool(where) and re.search(rf"""["']{FLAG}["']""", inspect.getsource(where)) is not None
        )
    except OSError:
        return False


_FIELDS = fields(TorchProfileConfig)
