# SPDX-License-Identifier: Apache-2.0
"""The table of docs/slurm.md, on real jobs: what befalls them, and what of their traces is left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from slurm_cluster import Cluster
from slurm_scenarios import Outcome, Scenarios
from trace_builder import read

# A test waits for all jobs that were begun before its own.
pytestmark = pytest.mark.timeout(3000)

STYLES = ("torchrun", "srun")


def steps(trace: Path) -> list[int]:
    """Iterations that a finished trace holds; it is strict JSON."""
    events = read(trace)["traceEvents"]
    marks = (str(event.get("name")).partition("#") for event in events)
    return sorted(int(number) for name, _, number in marks if name == "ProfilerStep")


def iterations(name: str) -> list[int]:
    """Those of the window that a trace is of: `iter-0000002-0000006/rank-0.pt.trace.json.gz`."""
    first, last = map(int, Path(name).parent.name.removeprefix("iter-").split("-"))
    return list(range(first, last + 1))


def check_traces(outcome: Outcome, ranks: tuple[int, ...] = (0, 2)) -> dict[int, list[str]]:
    """Whole windows, and of the one that was open what was saved: of these ranks, all valid.

    Returns:
        Rank -> its partial traces.
    """
    root = outcome.job.folder / "traces"
    of_rank: dict[int, list[str]] = {rank: [] for rank in ranks}
    for name in outcome.job.traces():
        of_rank[int(Path(name).name.removeprefix("rank-").partition(".")[0])].append(name)
        recorded = steps(root / name)
        assert recorded == iterations(name) or (".partial." in name and recorded), name
    # The first was written before anything befell the job.
    whole = [[name for name in names if ".partial." not in name] for names in of_rank.values()]
    assert all(whole), outcome.job.end
    unfinished = [*root.rglob("*.tmp"), *outcome.scratch.rglob("*.tmp")]
    assert unfinished == []
    return {rank: [n for n in names if ".partial." in n] for rank, names in of_rank.items()}


def check_signalled(outcome: Outcome, ranks: tuple[int, ...] = (0, 2)) -> None:
    """And each of them has one partial trace, since it was signalled while it recorded."""
    assert [len(names) for names in check_traces(outcome, ranks).values()] == [1, 1]


@pytest.mark.parametrize("scenario", [f"cancelled-{style}" for style in STYLES])
def test_a_cancelled_job_leaves_what_it_recorded(scenario: str, scenarios: Scenarios) -> None:
    outcome = scenarios.outcome(scenario)
    assert outcome.state == "CANCELLED"
    check_signalled(outcome, (0, 1))


@pytest.mark.parametrize(
    ("scenario", "state"),
    # torchrun calls it a failure when it was signalled, whatever its ranks did.
    [("limited-torchrun", "FAILED"), ("limited-srun", "COMPLETED")],
)
def test_a_job_that_nears_its_limit_saves_and_ends_before_it(
    scenario: str, state: str, scenarios: Scenarios
) -> None:
    outcome = scenarios.outcome(scenario)
    assert outcome.state == state
    check_signalled(outcome)


@pytest.mark.parametrize("scenario", ["killed-torchrun"])
def test_a_rank_that_dies_ends_the_job_and_costs_no_finished_trace(
    scenario: str, scenarios: Scenarios
) -> None:
    outcome = scenarios.outcome(scenario)
    assert outcome.state == "FAILED"
    # Of the open window: who waits for the dead inside a collective hears no signal.
    assert all(len(names) <= 1 for names in check_traces(outcome).values())


@pytest.mark.parametrize("scenario", ["unwritten-srun"])
def test_what_killed_ranks_left_on_their_nodes_is_completed_by_the_script(
    scenario: str, scenarios: Scenarios
) -> None:
    outcome = scenarios.outcome(scenario)
    assert outcome.state == "FAILED"
    names = {Path(name).name for name in outcome.job.traces()}
    assert names >= {"rank-0.pt.trace.json.gz", "rank-2.pt.trace.json.gz"}, outcome.job.end
    for name in outcome.job.traces():
        assert steps(outcome.job.folder / "traces" / name), name
    assert not outcome.scratch.exists()


@pytest.mark.parametrize("scenario", [f"preempted-{style}" for style in STYLES])
def test_a_preempted_job_saves_and_the_requeued_one_says_what_it_follows(
    scenario: str, scenarios: Scenarios
) -> None:
    outcome = scenarios.outcome(scenario)
    assert outcome.state == "COMPLETED", outcome.job.end
    check_signalled(outcome)
    root = outcome.job.folder / "traces"
    first, second = sorted(path for path in root.iterdir())
    assert first.name.endswith(f"-j{outcome.job.number}")
    plans = [json.loads((run / "run.json").read_text())["plan"] for run in (first, second)]
    assert [(plan["restarts"], plan["follows"]) for plan in plans] == [(0, None), (1, first.name)]
    assert f"restart 1 of this job: the run before is {first}" in outcome.job.log
    assert plans[1]["ranks"] == [0, 2]
    assert sorted(str(path.relative_to(second)) for path in second.rglob("*.gz")) == [
        f"iter-{window}/rank-{rank}.pt.trace.json.gz"
        for window in ("0000002-0000006", "0000007-0000021")
        for rank in (0, 2)
    ]


ALL = [f"{what}-{style}" for what in ("cancelled", "limited", "preempted") for style in STYLES]
ALL += ["killed-torchrun", "unwritten-srun"]


@pytest.mark.parametrize("scenario", ALL)
def test_no_process_outlives_its_job(scenario: str, scenarios: Scenarios) -> None:
    outcome = scenarios.outcome(scenario)
    assert outcome.left_behind == []
    # Neither torchrun nor the exporter, which waits for ten minutes, has lost patience. But a rank
    # that ends by an error waits for the workers of its data loader, which have the handler of
    # Megatron's --exit-signal-handler, until torchrun kills it: without this project, too.
    if scenario != "killed-torchrun":
        assert "forcefully exiting" not in outcome.job.log
    assert outcome.seconds < 500


@pytest.mark.parametrize("scenario", ALL)
def test_nodes_stay_up(scenario: str, scenarios: Scenarios, cluster: Cluster) -> None:
    scenarios.outcome(scenario)
    assert cluster.run("sinfo", "--noheader", "--list-reasons") == ""
    assert set(cluster.node_states()) <= {"idle", "mixed", "completing"}
