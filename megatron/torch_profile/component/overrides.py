# SPDX-License-Identifier: Apache-2.0
"""`--override key=value`: one value of a config, from the command line."""

from __future__ import annotations

import json
from typing import Any

from megatron.torch_trace.errors import UsageError


def override(document: dict[str, Any], change: str) -> None:
    """Set one value, in place.

    Args:
        document: the config as it was read.
        change: `sizes.sequence=256`; the value is YAML, as in a file.

    Raises:
        UsageError: it is no `key=value`, or it goes into what has no keys.
    """
    key, equals, text = change.partition("=")
    if not equals or not all(key.split(".")):
        raise UsageError(
            f"--override {change}: write key=value, like measure=50 or sizes.sequence=4096."
        )
    inside = document
    *folders, name = key.split(".")
    if folders[:1] == ["grid"]:  # its keys have dots themselves
        folders, name = ["grid"], key.partition(".")[2]
    for folder in folders:
        inside = inside.setdefault(folder, {})
        if not isinstance(inside, dict):
            raise UsageError(f"--override {change}: `{folder}` is {inside!r} and has no keys.")
    inside[name] = value_of(text)


def value_of(text: str) -> Any:
    """A value as it would be read from a file."""
    try:
        import yaml
    except ImportError:
        try:
            return json.loads(text)
        except ValueError:
            return text
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text
