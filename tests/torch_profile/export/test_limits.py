# SPDX-License-Identifier: Apache-2.0
"""Bounds on a window: trace size, host memory by control group, CUPTI's environment, pace."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from megatron.torch_profile.export import limits
from megatron.torch_profile.export.limits import WindowLimits, short_of_space
from megatron.torch_profile.record import cupti
from megatron.torch_trace.system.memory import HostMemory, host_memory

GIB = 1 << 30
MACHINE = "MemTotal: 104857600 kB\nMemAvailable: 83886080 kB\n"  # 100 and 80 GiB


def tree(folder: Path, files: dict[str, str]) -> tuple[Path, Path]:
    """A fake /sys/fs/cgroup and /proc."""
    for name, text in {"proc/meminfo": MACHINE, **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "cgroup", folder / "proc"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({}, HostMemory(100 * GIB, 20 * GIB), id="no control group"),
        pytest.param(
            {
                "proc/self/cgroup": "0::/slurm/job_7/step_0\n",
                "cgroup/slurm/job_7/memory.max": f"{32 * GIB}\n",
                "cgroup/slurm/job_7/memory.current": f"{30 * GIB}\n",
                "cgroup/slurm/job_7/memory.stat": f"anon 5\ninactive_file {6 * GIB}\n",
                "cgroup/slurm/job_7/step_0/memory.max": "max\n",
                "cgroup/slurm/job_7/step_0/memory.current": f"{30 * GIB}\n",
            },
            HostMemory(32 * GIB, 24 * GIB),
            id="v2, the limit is the parent's, page cache is free",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "5:cpu:/x\n4:memory:/slurm/uid_0/job_7\n",
                "cgroup/memory/slurm/uid_0/job_7/memory.limit_in_bytes": f"{16 * GIB}\n",
                "cgroup/memory/slurm/uid_0/job_7/memory.usage_in_bytes": f"{10 * GIB}\n",
                "cgroup/memory/slurm/uid_0/job_7/memory.stat": "total_inactive_file 0\n",
                "cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "cgroup/memory/memory.usage_in_bytes": "1\n",
                "cgroup/memory/memory.stat": "cache 1\n",
            },
            HostMemory(16 * GIB, 10 * GIB),
            id="v1",
        ),
    ],
)
def test_memory_is_that_of_the_control_group(
    tmp_path: Path, files: dict[str, str], expected: HostMemory
) -> None:
    assert host_memory(*tree(tmp_path, files)) == expected


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    state = SimpleNamespace(resident=GIB, host=HostMemory(100 * GIB, 20 * GIB))
    monkeypatch.setattr(limits, "resident_bytes", lambda: state.resident)
    monkeypatch.setattr(limits, "host_memory", lambda: state.host)
    return state


def test_a_window_within_its_limits_goes_on(process: Any) -> None:
    window = WindowLimits(None, lambda: None)
    process.resident += GIB
    assert window.reached(3) is None


def test_a_window_ends_before_the_iteration_that_would_pass_the_users_bound(process: Any) -> None:
    window = WindowLimits(250, lambda: 100)
    assert window.reached(1) is None
    assert window.reached(2) == (
        "the trace holds about 200 MB raw and the next iteration would take it past "
        "--torch-profile-max-trace-mb 250"
    )


def test_without_an_earlier_trace_the_growth_of_the_process_tells(process: Any) -> None:
    window = WindowLimits(250, lambda: None)
    process.resident += 100_000_000
    assert window.estimated_mb(1) == 200.0
    assert window.reached(1) is not None


def test_a_window_ends_before_the_control_group_is_full(process: Any) -> None:
    window = WindowLimits(None, lambda: None)
    process.resident += 500_000_000
    process.host = HostMemory(32 * GIB, 27 * GIB)
    assert window.reached(1) == (
        "host memory is short: 5.37 GB of 34.4 GB are left, and closing the window needs about 5 GB"
    )


def test_space_is_asked_for_all_writers_of_the_node(tmp_path: Path) -> None:
    assert short_of_space(tmp_path, 0, 8) is None
    assert "9 traces of about 1,000 TB raw would take" in str(short_of_space(tmp_path, 1e9, 9))


@pytest.mark.parametrize(
    ("cuda", "graphs", "given", "expected"),
    [
        (None, False, {}, {}),
        ("11.8", False, {}, {"TEARDOWN_CUPTI": "1"}),
        ("12.1", False, {}, {"TEARDOWN_CUPTI": "1"}),
        ("11.8", True, {}, {"TEARDOWN_CUPTI": "0", "DISABLE_CUPTI_LAZY_REINIT": "1"}),
        ("12.4", True, {}, {"TEARDOWN_CUPTI": "0", "DISABLE_CUPTI_LAZY_REINIT": "1"}),
        ("12.6", True, {}, {"TEARDOWN_CUPTI": "1"}),
        ("13.0", True, {}, {"TEARDOWN_CUPTI": "1"}),
        ("12.4", True, {"TEARDOWN_CUPTI": "1"}, {}),
        ("12.4", True, {"DISABLE_CUPTI_LAZY_REINIT": "0"}, {"TEARDOWN_CUPTI": "0"}),
    ],
)
def test_cupti_is_torn_down_where_that_does_not_crash(
    cuda: str | None, graphs: bool, given: dict[str, str], expected: dict[str, str]
) -> None:
    assert cupti.environment(cuda, cuda_graphs=graphs, given=given) == expected


@pytest.fixture
def unmanaged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cupti, "_managed", False)


@pytest.mark.usefixtures("unmanaged")
def test_cupti_stays_for_a_window_that_is_close_and_goes_before_one_that_is_not() -> None:
    environment: dict[str, str] = {}
    cupti.prepare("13.0", cuda_graphs=False, given=environment)
    found = []
    for gap in (0, 9, 10, 500, 1, None):
        cupti.before_stop(gap, environment)
        found.append(environment["TEARDOWN_CUPTI"])
    assert found == ["0", "0", "1", "1", "0", "1"]


@pytest.mark.usefixtures("unmanaged")
@pytest.mark.parametrize(
    ("graphs", "given"),
    [(False, {"TEARDOWN_CUPTI": "1"}), (False, {"TEARDOWN_CUPTI": "0"}), (True, {})],
)
def test_what_the_user_or_cuda_graphs_need_of_cupti_stays(
    graphs: bool, given: dict[str, str]
) -> None:
    environment = dict(given)
    cupti.prepare("12.4", cuda_graphs=graphs, given=environment)
    before = dict(environment)
    for gap in (0, None):
        cupti.before_stop(gap, environment)
    assert environment == before


def test_cuda_graphs_in_every_versions_spelling() -> None:
    assert not cupti.uses_cuda_graphs(SimpleNamespace())
    assert not cupti.uses_cuda_graphs(SimpleNamespace(cuda_graph_impl="none"))
    assert cupti.uses_cuda_graphs(SimpleNamespace(cuda_graph_impl="local"))
    assert cupti.uses_cuda_graphs(SimpleNamespace(enable_cuda_graph=True))
    assert cupti.uses_cuda_graphs(SimpleNamespace(optimizer_cuda_graph=True))


def test_nsys_is_named() -> None:
    assert cupti.other_subscriber({}) is None
    assert str(cupti.other_subscriber({"NSYS_PROFILING_SESSION_ID": "7"})).startswith(
        "Nsight Systems"
    )


def test_what_a_system_does_not_tell_is_not_short(tmp_path: Path) -> None:
    assert host_memory(tmp_path, tmp_path).free > 10**15
