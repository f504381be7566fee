# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from megatron.torch_trace.analysis.gpu_work.mfu import Mfu, compute_mfu, dense_peak_tflops


@pytest.mark.parametrize(
    ("device", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA H200", 989.4),
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("NVIDIA A100-PG509-200", 312.0),
        ("NVIDIA B200", 2250.0),
        ("NVIDIA GB200", 2500.0),
        ("AMD Instinct MI300X", 1307.4),
        ("AMD Instinct MI250X", 383.0 / 2),
        ("NVIDIA A10G", 70.0),
        ("NVIDIA A10", 125.0),
        ("Tesla V100-SXM2-32GB", None),
        ("NVIDIA GeForce RTX 4090", None),
        (None, None),
    ],
)
def test_the_peak_is_the_dense_one_of_the_very_model(
    device: str | None, peak: float | None
) -> None:
    assert dense_peak_tflops(device) == peak


def test_mfu_is_flops_over_what_all_gpus_could_do() -> None:
    found = compute_mfu(
        model_flops=989.4e12, source="trace", iteration_ns=5e8, gpus=4, device="NVIDIA H200"
    )
    assert found == Mfu(0.5, None, 989.4e12, "trace", 5e8, 4, 989.4)


@pytest.mark.parametrize(
    ("missing", "reason"),
    [
        ({"model_flops": None}, "give them with --model-flops"),
        ({"iteration_ns": None}, "no ProfilerStep"),
        ({"gpus": None}, "number of GPUs"),
        ({"device": "Tesla V100"}, "dense peak of the GPU Tesla V100 is unknown"),
    ],
)
def test_what_is_unknown_is_said_and_no_number_made_up(
    missing: dict[str, object], reason: str
) -> None:
    given = {
        "model_flops": 1e15,
        "source": "trace",
        "iteration_ns": 1e9,
        "gpus": 8,
        "device": "NVIDIA H200",
    }
    found = compute_mfu(**{**given, **missing})  # type: ignore[arg-type]
    assert found.value is None
    assert reason in (found.reason or "")
