# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a process's memory is said once, with what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import invoked
from snapshot_builder import GIB, MIB, SnapshotBuilder, block, frames

from megatron.torch_trace.allocator.answer import MemoryAnswer, memory
from megatron.torch_trace.allocator.findings import MemoryFinding, memory_findings

KEEPS = "train.py:12 keep"
FORWARD = "mlp.py:3 forward"


def answered(built: SnapshotBuilder, folder: Path) -> MemoryAnswer:
    (answer,) = memory(built.write(folder / "snapshot.pickle"))
    return answer


def steps(built: SnapshotBuilder, count: int, leak: int, *, marked: bool = True) -> SnapshotBuilder:
    """Steps of a second; each keeps `leak` bytes and lets go of what it needs until the next."""
    held = None
    for number in range(count):
        start = 1_000_000 * (number + 1)
        if marked:
            end = start + 1_000_000 if number < count - 1 else None
            built.annotation(f"ProfilerStep#{number}", start, end)
        old, held = held, built.alloc(4 * MIB, FORWARD, time_us=start + 1000)
        if old is not None:
            built.free(old)
        if leak:
            built.alloc(leak, KEEPS, FORWARD)
    return built


@pytest.mark.parametrize("marked", [True, False])
def test_a_leak_is_found_by_its_stack(tmp_path: Path, marked: bool) -> None:
    answer = answered(steps(SnapshotBuilder(), 9, 8 * MIB, marked=marked), tmp_path)
    unit = "step" if marked else "eighth of the history"
    (found,) = memory_findings(answer)
    assert found == MemoryFinding(
        "memory_growth",
        "high",
        f"Memory grows by 8.39 MB a {unit} and is not given back: train.py:12 keep.",
        "Look for what keeps these tensors: a list of losses without `.item()` or `.detach()`, a "
        "cache without a bound, hooks that store outputs.",
        {"bytes_per_step": 8 * MIB, "steps": 7 if marked else 8, "stack": [KEEPS, FORWARD]},
    )


def test_what_is_given_back_in_the_next_step_is_no_leak(tmp_path: Path) -> None:
    assert answered(steps(SnapshotBuilder(), 9, 0), tmp_path).growth == ()


def test_a_failed_request_that_free_pieces_would_hold_asks_for_segments_that_grow(
    tmp_path: Path,
) -> None:
    built = SnapshotBuilder()
    piece = [block(128 * MIB), block(200 * MIB, state="inactive")]
    built.segment(*(one for _ in range(10) for one in piece))
    built.entry("oom", size=GIB, device_free=300 * MIB)
    oom, fragmentation = memory_findings(answered(built, tmp_path))
    assert oom.sentence == (
        "A request for 1.07 GB failed: the GPU had 315 MB free, the allocator held 2.1 GB between "
        "blocks in use."
    )
    assert "expandable_segments:True" in oom.advice
    assert oom.evidence == {
        "requested_bytes": GIB,
        "device_free_bytes": 300 * MIB,
        "scattered_bytes": 2000 * MIB,
        "failures": 1,
    }
    assert fragmentation.sentence == (
        "2.1 GB of 3.44 GB reserved (61 %) lie between blocks in use; the largest free piece has "
        "210 MB."
    )


def test_a_failed_request_that_no_free_pieces_would_hold_asks_to_hold_less(tmp_path: Path) -> None:
    built = SnapshotBuilder()
    built.segment(block(GIB))
    built.entry("oom", size=GIB, device_free=300 * MIB)
    (found,) = memory_findings(answered(built, tmp_path))
    assert "--recompute-granularity selective" in found.advice


def seen_failing(folder: Path, **more: object) -> Path:
    """A snapshot without a history, and beside it what capture saw of the error."""
    built = SnapshotBuilder()
    built.segment(block(GIB), block(200 * MIB, state="inactive"))
    path = built.write(folder / "rank-0.iter-0000001.memory_snapshot.pickle")
    seen = {
        "schema": 1,
        "device": 0,
        "iteration": 1,
        "phase": "forward micro-batch 0",
        "module": "decoder.layers.1.mlp: MLP",
        "stack": ["mlp.py:3 forward"],
        "requested_bytes": GIB,
        "free_bytes": 900 * MIB,
    }
    beside = folder / "rank-0.iter-0000001.live_bytes.json"
    beside.write_text(json.dumps(seen | more))
    return path


def test_an_error_that_capture_saw_is_found_without_a_history(tmp_path: Path) -> None:
    (answer,) = memory(seen_failing(tmp_path))
    (found,) = memory_findings(answer)
    assert found.sentence == (
        "A request for 1.07 GB failed (iteration 1, forward micro-batch 0, decoder.layers.1.mlp: "
        "MLP): the GPU had 944 MB free, the allocator held 210 MB between blocks in use."
    )
    assert found.advice.startswith("The free pieces and what the GPU had free would have been")
    assert "which code holds the 1.07 GB that have no owner" in found.advice
    shown = invoked("memory", tmp_path).output
    assert "no stack recorded" in shown
    assert invoked("memory", tmp_path, "--fit").output.startswith(
        "What fits is unknown: rank 0 ran out of memory, so its peak was never reached;"
    )


@pytest.mark.parametrize(
    "more", [{"requested_bytes": "x"}, {"free_bytes": None}, {"device": 1}, {"device": []}]
)
def test_what_capture_does_not_write_is_no_error(tmp_path: Path, more: dict[str, object]) -> None:
    (answer,) = memory(seen_failing(tmp_path, **more))
    assert answer.out_of_memory == ()


def test_of_a_snapshot_without_a_history_nothing_tells_what_grows(tmp_path: Path) -> None:
    seen_failing(tmp_path, requested_bytes=None)
    assert "the snapshot of rank 0 has no history" in invoked("memory", tmp_path, "--fit").output


def test_requests_to_cuda_in_the_steady_state_are_a_finding(tmp_path: Path) -> None:
    built = SnapshotBuilder()
    for number in range(9):
        built.entry("segment_alloc", size=MIB, time_us=1_000_000 * (number + 1))
    built.segment(*(block(MIB) for _ in range(9)))
    (found,) = memory_findings(answered(built, tmp_path))
    assert found.sentence == (
        "In the second half of the history the allocator asked CUDA for memory 5 times in 4 s; "
        "each request can hold the GPU up."
    )


def test_requests_to_cuda_in_the_first_step_are_none(tmp_path: Path) -> None:
    built = SnapshotBuilder()
    for step in range(5):
        built.annotation(f"ProfilerStep#{step}", 1_000_000 * (step + 1), 1_000_000 * (step + 2))
    for number in range(9):
        built.entry("segment_alloc", size=MIB, time_us=1_000_000 + number)
    built.free(built.alloc(MIB, FORWARD, time_us=6_000_000))
    built.segment(*(block(MIB) for _ in range(9)))
    answer = answered(built, tmp_path)
    assert (answer.cuda.asked, answer.cuda.steady, answer.cuda.marked) == (9, 0, True)
    assert memory_findings(answer) == ()


def test_memory_that_was_given_back_to_be_asked_for_again_is_a_retry(tmp_path: Path) -> None:
    built = SnapshotBuilder()
    for _ in range(2):
        built.entry("segment_free", size=20 * MIB, frames=frames(FORWARD))
    built.entry("segment_alloc", size=40 * MIB, frames=frames(FORWARD))
    built.segment(block(40 * MIB))
    (found,) = memory_findings(answered(built, tmp_path))
    assert (found.code, found.severity) == ("allocator_retries", "high")
    assert found.evidence == {"retries": 1, "given_back_bytes": 40 * MIB}
    assert found.sentence == (
        "CUDA had no memory left 1 time: the allocator waited for the GPU, gave 41.9 MB back and "
        f"asked again, the last time for {FORWARD}."
    )


def test_a_cache_that_the_program_empties_is_no_retry(tmp_path: Path) -> None:
    built = SnapshotBuilder()
    stack = frames("/site/torch/cuda/memory.py:222 empty_cache", "train.py:3 main")
    built.entry("segment_free", size=20 * MIB, frames=stack)
    built.entry("segment_alloc", size=40 * MIB, frames=frames(FORWARD))
    built.segment(block(40 * MIB))
    assert memory_findings(answered(built, tmp_path)) == ()


def test_an_optimizers_step_that_is_the_peak_is_a_finding(tmp_path: Path) -> None:
    built = SnapshotBuilder()
    built.alloc(10 * MIB, FORWARD)
    passing = built.alloc(10 * MIB, "/site/torch/optim/adam.py:300 _multi_tensor_adam")
    built.free(passing, "/site/torch/optim/adam.py:300 _multi_tensor_adam")
    (found,) = memory_findings(answered(built, tmp_path))
    assert found.evidence == {"temporary_bytes": 10 * MIB, "peak_bytes": 20 * MIB}


def test_a_healthy_process_has_no_finding(tmp_path: Path) -> None:
    built = SnapshotBuilder()
    built.free(built.alloc(10 * MIB, FORWARD))
    assert memory_findings(answered(built, tmp_path)) == ()


@pytest.mark.parametrize("expandable", [False, True])
def test_free_pieces_between_blocks_in_use_are_a_finding(tmp_path: Path, expandable: bool) -> None:
    built = SnapshotBuilder()
    built.settings["expandable_segments"] = expandable
    for _ in range(4):
        built.segment(block(GIB), block(200 * MIB, state="inactive"), address=built.alloc(0) + 512)
    built.traces = [[]]
    (found,) = memory_findings(answered(built, tmp_path))
    assert (found.code, found.severity, found.sentence) == (
        "memory_fragmentation",
        "medium",
        "839 MB of 5.13 GB reserved (16 %) lie between blocks in use; the largest free piece has "
        "210 MB.",
    )
    assert found.evidence == {
        "scattered_bytes": 800 * MIB,
        "reserved_bytes": 4 * GIB + 800 * MIB,
        "largest_free_bytes": 200 * MIB,
    }
    assert ("expandable_segments:True" in found.advice) != expandable


def test_free_pieces_that_the_allocator_can_give_back_are_no_finding(tmp_path: Path) -> None:
    built = SnapshotBuilder()
    built.segment(block(GIB))
    built.segment(block(GIB, state="inactive"), address=1)
    assert memory_findings(answered(built, tmp_path)) == ()


@pytest.mark.parametrize("entry", ["oom", "retry"])
def test_a_loop_without_megatron_is_told_what_to_do_in_words(tmp_path: Path, entry: str) -> None:
    built = SnapshotBuilder()
    built.alloc(MIB, "mine.py:1 forward")
    if entry == "oom":
        built.entry("oom", device_free=0, size=4 * MIB)
    else:
        built.entry("segment_free", addr=1, size=MIB)
        built.entry("segment_alloc", addr=1, size=MIB)
    answer = answered(built, tmp_path)
    (megatrons,), (others,) = memory_findings(answer), memory_findings(answer, megatron=False)
    assert "Hold less: `--recompute-granularity selective`" in megatrons.advice
    assert "Hold less: recompute activations, make the micro-batches smaller" in others.advice
    assert "(in Megatron: `--recompute-granularity selective`" in others.advice
