# SPDX-License-Identifier: Apache-2.0
"""`torch-trace slim`: what it says about categories, streams and times that are not there."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import run
from trace_builder import GEMM, TraceBuilder, names


def test_slim_says_which_categories_there_are_where_one_is_misspelt(clean: Path) -> None:
    out = clean.with_name("out.json")
    for words, wrong in (
        ("kernels", "kernels"),
        ("kernels,cuda_runtime", "kernels"),
        ("cpu_op,gpu_memset", "cpu_op,gpu_memset"),
    ):
        result = run("slim", clean, "-o", out, "--category", words)
        expected = f"--category {wrong}: not in {clean}, which has cuda_runtime, kernel.\n"
        assert result.stderr.decode() == f"torch-trace: {expected}"
        assert result.returncode == 2
        assert not out.exists()


def test_slim_says_once_which_known_category_a_trace_lacks(clean: Path) -> None:
    out = clean.with_name("out.json")
    result = run("slim", clean, "-o", out, "--category", "kernel,gpu_memset")
    assert result.stderr.decode() == f"--category gpu_memset: no such event in {clean}.\n"
    assert result.returncode == 0
    assert run("slim", clean, "-o", out, "--force", "--category", "kernel").stderr == b""


def test_a_preset_is_not_asked_for_the_categories_of_other_makers(clean: Path) -> None:
    out = clean.with_name("out.json")
    assert run("slim", clean, "-o", out, "--preset", "overlap").stderr == b""


@pytest.fixture
def two_streams(tmp_path: Path) -> Path:
    trace = TraceBuilder(clock=1_000).step(5, 0, 100_000).step(6, 100_000, 200_000)
    trace.gpu(GEMM, 20_000, 30_000, launch=10_000, stream=7)
    trace.gpu("of another stream", 40_000, 50_000, launch=11_000, stream=8)
    return trace.write(tmp_path / "two.json")


@pytest.mark.parametrize("streams", ["999", "7,999", "7-8,999"])
def test_a_stream_that_is_not_there_is_named_with_those_that_are(
    streams: str, two_streams: Path
) -> None:
    out = two_streams.with_name("out.json")
    result = run("slim", two_streams, "-o", out, "--stream", streams)
    assert result.stderr.decode() == (
        f"torch-trace: --stream 999: not in {two_streams}, which has streams 7, 8.\n"
    )
    assert result.returncode == 2
    assert not out.exists()


def test_a_stream_without_work_in_the_step_can_be_asked_for_again(two_streams: Path) -> None:
    once, twice = two_streams.with_name("once.json"), two_streams.with_name("twice.json")
    for source, target in ((two_streams, once), (once, twice)):
        assert run("slim", source, "-o", target, "--step", "6", "--stream", "8").returncode == 0
    assert names(once.read_bytes()) == names(twice.read_bytes())
    assert "of another stream" not in names(once.read_bytes())


def test_a_time_after_the_end_is_refused_with_the_length(two_streams: Path) -> None:
    out = two_streams.with_name("out.json")
    result = run("slim", two_streams, "-o", out, "--from", "9s")
    assert result.stderr.decode() == (
        f"torch-trace: --from 9 s: {two_streams} ends 200 us after its first event; give an "
        "earlier time.\n"
    )
    assert result.returncode == 2
    assert not out.exists()
