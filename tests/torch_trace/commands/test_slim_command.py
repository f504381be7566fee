# SPDX-License-Identifier: Apache-2.0
"""`torch-trace slim`: what it says about categories."""

from __future__ import annotations

from pathlib import Path

from command_line import run


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
