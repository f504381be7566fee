# SPDX-License-Identifier: Apache-2.0
"""What /proc and the control groups tell of the processes of a job."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

FREEZER = Path("/sys/fs/cgroup/freezer")


def with_variables(**variables: str) -> list[int]:
    """Numbers of processes that began with these variables."""
    wanted = {f"{name}={value}".encode() for name, value in variables.items()}
    found = []
    for number in _numbers():
        with suppress(OSError):
            if wanted <= {*Path(f"/proc/{number}/environ").read_bytes().split(b"\0")}:
                found.append(number)
    return found


def in_groups(job: str) -> list[int]:
    """Numbers of processes that SLURM still sees of a job, but for SLURM's own."""
    found: list[int] = []
    for group in FREEZER.glob(f"slurm_*/uid_*/job_{job}/**/cgroup.procs"):
        with suppress(OSError):
            found += map(int, group.read_text().split())
    return [number for number in found if not _command_line(number).startswith(b"slurmstepd")]


def has_steps(job: str) -> bool:
    """Whether a slurmstepd of a job lives."""
    title = f"slurmstepd: [{job}.".encode()
    return any(_command_line(number).startswith(title) for number in _numbers())


def _numbers() -> list[int]:
    return [int(process.name) for process in Path("/proc").glob("[0-9]*")]


def _command_line(number: int) -> bytes:
    try:
        return Path(f"/proc/{number}/cmdline").read_bytes()
    except OSError:
        return b""
