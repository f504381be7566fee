# SPDX-License-Identifier: Apache-2.0
"""Cores and memory are those of the job's own control group, for both halves alike."""

from __future__ import annotations

import ctypes
import os
import re
import sys
import threading
from pathlib import Path

import pytest

from megatron.torch_trace.analysis.run import rank_pool
from megatron.torch_trace.commands import options
from megatron.torch_trace.system import cores, freed_memory
from megatron.torch_trace.system.cores import available_cores
from megatron.torch_trace.system.memory import HostMemory, host_memory

GIB = 1 << 30
JOB = "slurm/uid_1000/job_7"


def system(root: Path, files: dict[str, str]) -> tuple[Path, Path]:
    """Folders in place of /sys/fs/cgroup and /proc."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root / "cgroup", root / "proc"


def job_of_8_gb(root: Path) -> tuple[Path, Path]:
    return system(
        root,
        {
            "proc/self/cgroup": f"0::/{JOB}\n",
            "proc/meminfo": f"MemTotal: {GIB} kB\nMemAvailable: {GIB} kB\n",
            "cgroup/memory.max": "max\n",
            "cgroup/memory.current": f"{900 * GIB}\n",
            f"cgroup/{JOB}/memory.max": f"{8 * GIB}\n",
            f"cgroup/{JOB}/memory.current": f"{GIB}\n",
        },
    )


def test_the_analysis_counts_with_the_memory_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups, proc = job_of_8_gb(tmp_path)
    found = host_memory(groups, proc)
    assert found == HostMemory(8 * GIB, GIB)
    traces = [tmp_path / f"rank-{rank}.json" for rank in range(32)]
    for trace in traces:
        trace.touch()
        os.truncate(trace, 10 * GIB)
    monkeypatch.setattr(rank_pool, "host_memory", lambda: found)
    monkeypatch.setattr(rank_pool, "available_cores", lambda most: most)
    assert rank_pool._jobs(traces) == 1
    assert rank_pool._jobs([]) == 64


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({f"cgroup/{JOB}/cpu.max": "200000 100000\n"}, 2, id="v2, the job's own"),
        pytest.param({"cgroup/slurm/cpu.max": "300000 100000\n"}, 3, id="v2, of a group above"),
        pytest.param({f"cgroup/{JOB}/cpu.max": "max 100000\n"}, 8, id="v2, none"),
        pytest.param(
            {
                "proc/self/cgroup": f"4:cpuacct,cpu:/{JOB}\n",
                f"cgroup/cpu/{JOB}/cpu.cfs_quota_us": "500000\n",
                f"cgroup/cpu/{JOB}/cpu.cfs_period_us": "100000\n",
            },
            5,
            id="v1",
        ),
        pytest.param(
            {
                "proc/self/cgroup": f"4:cpu:/{JOB}\n",
                f"cgroup/cpu/{JOB}/cpu.cfs_quota_us": "-1\n",
                f"cgroup/cpu/{JOB}/cpu.cfs_period_us": "100000\n",
            },
            8,
            id="v1, none",
        ),
    ],
)
def test_the_quota_of_cores_is_the_tightest_of_the_jobs_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    groups, proc = system(tmp_path, {"proc/self/cgroup": f"0::/{JOB}\n"} | files)
    assert available_cores(64, cgroups=groups, proc=proc) == expected


def test_the_help_of_j_says_what_is_taken() -> None:
    assert f"at most {cores.MOST_FOR_ONE_FILE}" in options.JOBS
    assert f"at most {cores.MOST_FOR_ONE_FILE} for one trace" in options.JOBS_OF_RANKS
    assert f"{cores.MOST_FOR_RANKS} for several" in options.JOBS_OF_RANKS


PIECES, PIECE = 20_000, 4_000


def resident() -> int:
    """Bytes, without pages of files: the system takes those back when it likes."""
    (line,) = re.findall(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(line) << 10


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="not glibc"
)
def test_memory_that_a_thread_has_freed_goes_back_to_the_system() -> None:
    library = ctypes.CDLL(None)
    library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    lives_on: list[int] = []

    def work() -> None:
        pieces = [library.malloc(PIECE) for _ in range(PIECES)]
        for piece in pieces:
            ctypes.memset(piece, 1, PIECE)
        lives_on.append(library.malloc(PIECE))
        for piece in pieces:
            library.free(piece)

    freed_memory.give_back()  # what other tests have left: pieces would lie in it
    before = resident()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    kept = resident() - before
    freed_memory.give_back()
    left = resident() - before
    library.free(lives_on[0])
    assert kept > PIECES * PIECE // 2
    assert left < kept // 4


def test_a_c_library_that_cannot_give_memory_back_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    freed_memory._malloc_trim.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    try:
        freed_memory.give_back()
        assert freed_memory._malloc_trim() is None
    finally:
        freed_memory._malloc_trim.cache_clear()
