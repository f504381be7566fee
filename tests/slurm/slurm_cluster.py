# SPDX-License-Identifier: Apache-2.0
"""A real SLURM of two nodes on this machine: everything below one folder, nothing of the system's.

Each slurmd has a host name and an /etc/hosts of its own (a mount and a UTS namespace) and answers
on an address of its own; proctrack/cgroup decides who is signalled, as on most clusters. Nodes have
more CPUs than there are, so that several jobs run at a time.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import job_processes
from job_processes import FREEZER

NODES = {"n1": "127.0.0.11", "n2": "127.0.0.12"}
CPUS = 256
KILL_WAIT_SECONDS = 30  # as SLURM has it
GRACE_SECONDS = 20
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "unshare")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"

_CONFIGURATION = """\
ClusterName=mini
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort={port}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.sock
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/cgroup
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=0
SlurmdParameters=config_overrides
ReturnToService=2
KillWait={kill_wait}
UnkillableStepTimeout=300
MessageTimeout=90
TCPTimeout=30
BatchStartTimeout=120
PropagateResourceLimits=NONE
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
FirstJobId={first_job}
{nodes}
PartitionName=main Nodes=ALL Default=YES PriorityTier=5 PreemptMode=OFF
PartitionName=low Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace}
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF
"""

_CGROUP = f"""\
CgroupPlugin=cgroup/v1
CgroupMountpoint={FREEZER.parent}
CgroupAutomount=no
ConstrainCores=no
ConstrainRAMSpace=no
ConstrainDevices=no
"""


def why_not_here() -> str | None:
    """Why this machine cannot run it, or None."""
    if os.geteuid() != 0:
        return "a SLURM of two nodes on one machine needs root"
    missing = [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]
    if missing:
        return f"{', '.join(missing)} not installed (Debian: apt install slurm-wlm munge)"
    if not os.access(FREEZER, os.W_OK):
        return f"SLURM's proctrack/cgroup needs a freezer control group to write to ({FREEZER})"
    return None


def until(condition: Callable[[], object], what: str, seconds: float = 600.0) -> None:
    """Wait for a condition, looking five times a second."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.2)


@dataclass(frozen=True)
class Job:
    """A job that was submitted."""

    cluster: Cluster
    number: str
    folder: Path

    def field(self, name: str) -> str:
        """What `scontrol show job` says of one thing."""
        shown = self.cluster.run("scontrol", "show", "job", "-o", self.number)
        return next(
            (word.partition("=")[2] for word in shown.split() if word.startswith(f"{name}=")), ""
        )

    def wait(self, seconds: float = 600.0) -> str:
        """Its last state, once it has ended and left its nodes."""
        running = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SIGNALING")
        until(lambda: self.field("JobState") not in running, f"end of job {self.number}", seconds)
        return self.field("JobState")

    @property
    def end(self) -> str:
        """What went wrong with it, for a person: SLURM's record and the ends of all its logs."""
        shown = [self.cluster.run("scontrol", "show", "job", self.number)]
        for path in sorted(path for path in self.folder.rglob("*.log") if path.is_file()):
            shown += [f"==> {path}", path.read_text(errors="replace")[-1500:]]
        return "\n".join(shown)

    @property
    def log(self) -> str:
        """What all of it has written."""
        files = sorted(path for path in self.folder.rglob("*.log") if path.is_file())
        return "\n".join(path.read_text(errors="replace") for path in files)

    def traces(self) -> list[str]:
        """Finished traces, below the runs' folder: `run/window/rank`."""
        root = self.folder / "traces"
        return sorted(str(path.relative_to(root)) for path in root.rglob("*.pt.trace.json.gz"))

    def processes(self, **variables: str) -> list[int]:
        """Numbers of its living processes, or of those with these variables too."""
        found = job_processes.with_variables(SLURM_JOB_ID=self.number, **variables)
        # Of a fork of a warm Python /proc has no variables.
        return sorted(found if variables else {*found, *job_processes.in_groups(self.number)})

    def has_steps(self) -> bool:
        """Whether a slurmstepd of it lives: it has yet to tell SLURM how its step ended."""
        return job_processes.has_steps(self.number)


class Cluster:
    """A SLURM that runs.

    Args:
        folder: for all its files; empty.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLURM_", "SBATCH_", "SRUN_"))
        }
        self.environment |= {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": _PATH}

    def start(self) -> None:
        """Start the daemons and wait for the nodes."""
        folder = self.folder
        folder.chmod(0o755)
        for name in ("state", "key"):
            (folder / name).mkdir(mode=0o700)
        key = folder / "key" / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        ports = _free_ports(1 + len(NODES))
        nodes = [
            f"NodeName={name} NodeAddr={address} Port={port} CPUs={CPUS} RealMemory=4000"
            for (name, address), port in zip(NODES.items(), ports[1:], strict=True)
        ]
        (folder / "slurm.conf").write_text(
            _CONFIGURATION.format(
                folder=folder,
                port=ports[0],
                kill_wait=KILL_WAIT_SECONDS,
                grace=GRACE_SECONDS,
                # Ports of rendezvous come from the job's number: not those of another cluster.
                first_job=ports[0] % 9000 + 100,
                nodes="\n".join(nodes),
            )
        )
        (folder / "cgroup.conf").write_text(_CGROUP)
        hosts = "".join(f"{address} {name}\n" for name, address in NODES.items())
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
        munge = {"key-file": key, "socket": folder / "munge.sock"}
        munge |= {f"{kind}-file": folder / f"munged.{kind}" for kind in ("pid", "log", "seed")}
        self.run("munged", *(f"--{name}={path}" for name, path in munge.items()))
        self.run("slurmctld", "-c")
        for name in NODES:
            own = 'mount --bind "$1" /etc/hosts && hostname "$0" && exec slurmd -N "$0"'
            spaces = ("--mount", "--uts", "--propagation", "private")
            self.run("unshare", *spaces, "bash", "-c", own, name, str(folder / "hosts"))
        until(lambda: self.node_states() == ["idle"] * len(NODES), "nodes to be idle", 300)

    def stop(self) -> None:
        """End all jobs and daemons, by their numbers."""
        if (self.folder / "slurmctld.pid").exists():
            with suppress(subprocess.CalledProcessError, AssertionError):
                self.run("scancel", "--user=root")
                until(lambda: not self.run("squeue", "--noheader"), "end of all jobs", 300)
        numbers = [int(path.read_text()) for path in self.folder.glob("*.pid")]
        for number in numbers:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGTERM)
        try:
            until(lambda: not any(map(_lives, numbers)), "end of all daemons", 120)
        except AssertionError:
            for number in filter(_lives, numbers):
                os.kill(number, signal.SIGKILL)
        for name in NODES:
            group = FREEZER / f"slurm_{name}"
            for path in (*sorted(group.rglob("*"), reverse=True), group):
                if path.is_dir():
                    with suppress(OSError):  # another session has nodes of the same name
                        path.rmdir()

    def run(self, *command: str) -> str:
        """Output of one of SLURM's commands."""
        return subprocess.run(
            command,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=300,
        ).stdout

    def node_states(self) -> list[str]:
        """One word a node; `idle` is up and free, `mixed` is up and at work."""
        states = self.run("sinfo", "--noheader", "--Node", "--partition=main", "--format=%T")
        return states.split()

    def submit(
        self,
        folder: Path,
        script: Path,
        *arguments: str,
        options: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
    ) -> Job:
        """Submit a script whose OUTPUT and logs go to a folder.

        Args:
            folder: made.
            script: a batch script.
            arguments: of the script.
            options: of sbatch.
            settings: environment of the script.
        """
        folder.mkdir()
        submitted = subprocess.run(
            ["sbatch", "--parsable", f"--output={folder}/batch.log", *options, script, *arguments],
            env={**self.environment, **(settings or {}), "OUTPUT": str(folder)},
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return Job(self, submitted.stdout.strip(), folder)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("", 0)) for _ in range(count)]
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


def _lives(number: int) -> bool:
    # A daemon's parent is the machine's first process, which may take a while to notice its end.
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
