# SPDX-License-Identifier: Apache-2.0
"""The control group of this process and all above it, any of which may limit it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CGROUPS, PROC = Path("/sys/fs/cgroup"), Path("/proc")


class ControlGroup(NamedTuple):
    """A group's folder, and whose file names it uses: version 2 of the kernel's, or version 1."""

    folder: Path
    is_v2: bool


def control_groups(
    controller: str, cgroups: Path = CGROUPS, proc: Path = PROC
) -> Iterator[ControlGroup]:
    """This process's own group first, then those above it.

    Source: the kernel's documentation of cgroup v1 and v2, /proc/<pid>/cgroup.
    """
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        is_v2 = controllers == ""
        if not is_v2 and controller not in controllers.split(","):
            continue
        base = cgroups if is_v2 else cgroups / controller
        group = Path(path.lstrip("/"))
        for part in (group, *group.parents):
            yield ControlGroup(base / part, is_v2)
