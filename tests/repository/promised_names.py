# SPDX-License-Identifier: Apache-2.0
"""All names that users' scripts rely on, as the code has them now.

    python tests/repository/promised_names.py        writes tests/data/promised_names.json anew

`test_promised_names.py` holds that each of them stays. New names need nothing; the file is written
anew for a release, and where a name goes away on purpose, which CHANGELOG.md then says.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).parents[2]
FILE = ROOT / "tests" / "data" / "promised_names.json"
DATA = ROOT / "tests" / "data"
DOCUMENTS = {
    "analyze": ["analyze", DATA / "tp2pp2-spans"],
    "analyze of a straggler": ["analyze", DATA / "analysis" / "dp4-rank2-slow"],
    "whatif": ["whatif", DATA / "analysis" / "dp4-rank2-slow"],
    "compare": ["compare", DATA / "dp2-spans", DATA / "ep2-spans"],
    "memory": ["memory", DATA / "memory-snapshot.pickle.gz"],
    "info": ["info", DATA / "dp2-spans" / "rank-0.pt.trace.json.gz"],
}
"""Commands whose `--json` is looked at, with a sample."""


def flags() -> list[str]:
    """Flags of training with their defaults."""
    from megatron.torch_profile.config import TorchProfileConfig, flag_of
    from megatron.torch_profile.metrics_config import MetricsConfig

    ours, metrics = TorchProfileConfig(), MetricsConfig()
    names = [f"{flag_of(one.name)} {getattr(ours, one.name)!r}" for one in _fields(ours)]
    return names + [f"--{one.name} {getattr(metrics, one.name)!r}" for one in _fields(metrics)]


def _fields(config: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(config)


def python_names() -> list[str]:
    """Public names of both packages; of functions the arguments, too."""
    from megatron import torch_profile, torch_trace

    found = []
    for package in (torch_profile, torch_trace):
        for name in package.__all__:
            value = getattr(package, name)
            full = f"{package.__name__}.{name}"
            found.append(full)
            if inspect.isfunction(value):
                found += [f"{full}({one})" for one in inspect.signature(value).parameters]
    return found


def options() -> list[str]:
    """Commands of torch-trace, and the spellings of their options."""
    from megatron.torch_trace.commands import SUBCOMMANDS, cli

    found = []
    for name in SUBCOMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        found.append(name)
        for option in command.params:
            if isinstance(option, click.Option):
                found += [f"{name} {one}" for one in (*option.opts, *option.secondary_opts)]
    return found


def keys(name: str) -> list[str]:
    """Keys of a command's JSON, with `[]` for the elements of a list: `ranks[].steps[].step`."""
    from command_line import run

    found: dict[str, None] = {}
    _walk(json.loads(run(*DOCUMENTS[name], "--json").stdout), "", found)
    return list(found)


def _walk(value: Any, path: str, found: dict[str, None]) -> None:
    if isinstance(value, dict):
        for key, one in value.items():
            # Keys that are values of the sample, such as a rank or a kernel's name, are none.
            if re.fullmatch(r"[a-z][a-z0-9_]*", key):
                found[f"{path}.{key}".lstrip(".")] = None
                # The numbers behind a finding are for people; scripts have its code and its gain.
                _walk(None if key == "evidence" else one, f"{path}.{key}", found)
    elif isinstance(value, list):
        for one in value:
            _walk(one, f"{path}[]", found)


def metric_keys() -> list[str]:
    """Keys in W&B, TensorBoard and metrics.jsonl, as docs/metrics.md lists them."""
    text = (ROOT / "docs" / "metrics.md").read_text()
    named = re.findall(r"`((?:timers|train|gpu|memory|compile|profile)/[^`\n]+)`", text)
    return list(dict.fromkeys(named))


def columns() -> list[str]:
    """Tables of `export` and `sql`, and their columns with types."""
    from megatron.torch_trace.parquet.schemas import SCHEMAS

    tables = SCHEMAS.items()
    return [f"{table}.{name} {kind}" for table, own in tables for name, kind in own.items()]


def codes() -> list[str]:
    """Names of findings."""
    from megatron.torch_trace.analysis.findings import modules

    return sorted(module.SLUG for module in modules())


def all_names() -> dict[str, list[str]]:
    """By kind."""
    return {
        "flags": flags(),
        "Python": python_names(),
        "commands": options(),
        **{f"--json of {name}": keys(name) for name in DOCUMENTS},
        "metrics": metric_keys(),
        "columns": columns(),
        "findings": codes(),
    }


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    FILE.write_text(json.dumps(all_names(), indent=0) + "\n")
