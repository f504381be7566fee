# SPDX-License-Identifier: Apache-2.0
"""What was different about two runs: flags first, then versions, environment and topology."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.analysis.results.run_record import find_run

FLAG, ARGUMENT, VERSION, ENVIRONMENT, TOPOLOGY, STORAGE, RECORDING = ORDER = (
    "flag", "argument", "version", "environment", "topology", "place", "recording",
)  # fmt: skip
"""Kinds, as they are listed. Where a run reads and writes (`place`) and what its profiler was told
hardly change training: these are last."""

_OF_THE_JOB = ("SLURM_", "TORCHELASTIC_", "CUDA_VISIBLE_DEVICES", "TORCH_NCCL_ASYNC_ERROR")
"""Environment that is different in every job and says nothing about it."""
_OF_THE_PROCESS = ("rank", "local_rank", "inprocess_active_world_size")
_STORAGE_FLAG = re.compile(r"(^|_)(dir|path|save|load|exp_name|project)$")


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that A and B do not have in common.

    Args:
        kind: `flag`, `argument` (resolved by Megatron, not given as a flag), `version`,
            `environment`, `topology`, `place` or `recording`.
        name: of the flag, the package, the variable, ...
        before, after: as text; None where it is not there.
    """

    kind: str
    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class Configuration:
    """What is known about the two configurations.

    Args:
        changes: flags first.
        same_run: both are of one launch, so nothing can differ.
        not_recorded: of `A` and `B`, who has neither a run.json nor its command line in the traces.
    """

    changes: tuple[Change, ...]
    same_run: bool
    not_recorded: tuple[str, ...]


def compare_configuration(a: Analysis, b: Analysis) -> Configuration:
    """Read what is beside the traces, and find what differs."""
    records = [find_run(one) for one in (a, b)]
    runs = [record.run if record else {} for record in records]
    folders = [record.folder if record else None for record in records]
    same = folders[0] is not None and folders[0] == folders[1]
    argv = [
        run.get("argv") or list(one.ranks[0].argv) for run, one in zip(runs, (a, b), strict=True)
    ]
    flags = [flags_of(one) for one in argv]
    changes = _differing(FLAG, *flags) if all(argv) else []
    told = {change.name.lstrip("-").replace("-", "_") for change in changes}
    if all(run.get("arguments") for run in runs):
        changes += [
            change
            for change in _differing(ARGUMENT, *(run["arguments"] for run in runs))
            # What only one of them knows is of another Megatron, whose version is listed.
            if change.name in runs[0]["arguments"] and change.name in runs[1]["arguments"]
            if change.name not in told and change.name not in _OF_THE_PROCESS
        ]
    for kind, key in ((VERSION, "versions"), (ENVIRONMENT, "environment")):
        if all(run.get(key) for run in runs):
            changes += _differing(kind, *(_without_noise(run[key]) for run in runs))
    changes += [
        change
        for change in _differing(TOPOLOGY, *map(_topology, runs, (a, b)))
        # What only one side tells is unknown on the other, not different.
        if change.before is not None and change.after is not None
    ]
    changes = [] if same else [_sorted_out(change) for change in changes]
    return Configuration(
        changes=tuple(sorted(changes, key=lambda change: ORDER.index(change.kind))),
        same_run=same,
        not_recorded=tuple(
            name for name, run, given in zip("AB", runs, argv, strict=True) if not run and not given
        ),
    )


def flags_of(argv: Iterable[str]) -> dict[str, str]:
    """Flags of a command line with their values as one text; the script is no flag.

    Example:
        ["train.py", "--tp", "2", "--split", "9,1", "--bf16"] ->
        {"--tp": "2", "--split": "9,1", "--bf16": ""}
    """
    found: dict[str, str] = {}
    flag = None
    for word in argv:
        if word.startswith("--") and len(word) > 2:
            flag, _, value = word.partition("=")
            found[flag] = value
        elif flag is not None:
            found[flag] = f"{found[flag]} {word}".strip()
    return found


def _differing(kind: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    return [
        Change(kind, name, _text(before, name), _text(after, name))
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]


def _text(values: Mapping[str, Any], name: str) -> str | None:
    value = values.get(name)
    return None if value is None else str(value)


def _without_noise(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if not name.startswith(_OF_THE_JOB)}


def _topology(run: Mapping[str, Any], analysis: Analysis) -> dict[str, Any]:
    """World size, GPU, hosts, sizes of the dimensions: by run.json, else as the traces tell."""
    ranks = analysis.ranks
    sizes = run.get("layout")
    if not isinstance(sizes, dict):
        # Of a part of the ranks nobody knows the largest coordinate.
        complete = ranks if len(ranks) == ranks[0].world_size else ()
        named = {dimension for rank in complete for dimension in rank.coordinates}
        sizes = {
            dimension: 1 + max(rank.coordinates.get(dimension, 0) for rank in complete)
            for dimension in sorted(named)
        }
    # As text: a damaged trace may hold something else.
    hosts = sorted({str(rank.host_name) for rank in ranks if rank.host_name})
    return {
        "world size": ranks[0].world_size,
        "GPU": ", ".join(sorted({str(rank.device) for rank in ranks if rank.device})) or None,
        "hosts": ", ".join(hosts) or None,
        **{f"{dimension} size": size for dimension, size in sizes.items()},
    }


def _sorted_out(change: Change) -> Change:
    name = change.name.lstrip("-").replace("-", "_")
    if change.kind not in (FLAG, ARGUMENT):
        return change
    if name.startswith("torch_profile"):
        return replace(change, kind=RECORDING)
    return replace(change, kind=STORAGE) if _STORAGE_FLAG.search(name) else change
