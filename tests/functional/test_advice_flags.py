# SPDX-License-Identifier: Apache-2.0
"""Advice names flags that Megatron has, in every wheel."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launches import WHEELS

from megatron.torch_trace import allocator
from megatron.torch_trace.analysis import findings
from megatron.torch_trace.analysis.timeline.command_line import INTERLEAVING, LAYOUT

OURS = {"--align", "--fit", "--json", "--model-flops"}
_FLAG = re.compile(r"`(--[a-z0-9-]+)")
_PARTS = (
    "training/arguments.py",
    "training/config",
    "core/transformer/transformer_config.py",
    "core/model_parallel_config.py",
)


def advised() -> Iterator[str]:
    """Every flag of Megatron's that a finding names."""
    folders = [Path(one.__file__).parent for one in (findings, allocator)]
    for module in sorted(path for folder in folders for path in folder.rglob("*.py")):
        # Strings go on in the next line.
        text = re.sub(r'"\s*\n\s*f?"', "", module.read_text())
        yield from (flag for flag in _FLAG.findall(text) if "torch-profile" not in flag)
    yield from (*INTERLEAVING, LAYOUT)


@pytest.mark.parametrize("version", WHEELS)
def test_every_flag_that_is_advised_is_one_of_megatron_s(
    version: str, wheel_path: Callable[[str], str]
) -> None:
    sources = [Path(wheel_path(version)) / "megatron" / part for part in _PARTS]
    files = [f for one in sources for f in ([one] if one.is_file() else one.rglob("*.py"))]
    text = "\n".join(file.read_text() for file in files)

    def known(flag: str) -> bool:
        # Newer versions make flags of the fields of their configurations: of one that is True the
        # flag that turns it off.
        field = flag.removeprefix("--").replace("-", "_")
        turned_off = f"\n    {field.removeprefix('no_')}: bool = True" in text
        by_field = turned_off if field.startswith("no_") else f"\n    {field}:" in text
        return f"'{flag}'" in text or f'"{flag}"' in text or by_field

    wanted = set(advised()) - OURS
    assert len(wanted) > 25
    assert {flag for flag in wanted if not known(flag)} == set()
