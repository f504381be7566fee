# SPDX-License-Identifier: Apache-2.0
"""GPU telemetry against stand-ins for NVML's functions."""

from __future__ import annotations

import math
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from logging_megatron import Follow

from megatron.torch_profile.metrics import lifetime, telemetry
from megatron.torch_profile.metrics.nvml import GIB, Gpu, throttle_names
from megatron.torch_profile.metrics.telemetry import FIELDS, Fleet, Sampler, summarise, unknown
from megatron.torch_profile.metrics_config import MetricsConfig


class Nvml(ModuleType):
    """NVML of a card that throttles at the power cap and counts 1 MiB of NVLink a question."""

    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1
    NVML_PCIE_UTIL_TX_BYTES = 0
    NVML_PCIE_UTIL_RX_BYTES = 1
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX = 138
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 139
    nvmlMemory_v2 = 2  # noqa: N815 - NVML's name

    def __init__(self, *missing: str) -> None:
        super().__init__("pynvml")
        self.missing = missing
        self.asked: list[str] = []
        self.mebibytes = 0

    def _answer(self, name: str, value: Any) -> Any:
        self.asked.append(name)
        if name in self.missing:
            raise OSError(f"{name} is not supported")
        return value

    def nvmlInit(self) -> None:  # noqa: N802
        self._answer("init", None)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        return f"handle of {uuid}"

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return f"handle {index}"

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:  # noqa: N802
        return self._answer("utilization", SimpleNamespace(gpu=90, memory=50))

    def nvmlDeviceGetMemoryInfo(self, handle: Any, version: int | None = None) -> Any:  # noqa: N802
        sizes = {"used": 60 * GIB, "total": 80 * GIB}
        if version:
            sizes = self._answer("memory v2", {**sizes, "reserved": 1 * GIB})
        return SimpleNamespace(**sizes)

    def nvmlDeviceGetPowerUsage(self, handle: Any) -> int:  # noqa: N802
        return int(self._answer("power", 650_000))

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int) -> int:  # noqa: N802
        return int(self._answer("temperature", 71))

    def nvmlDeviceGetClockInfo(self, handle: Any, clock: int) -> int:  # noqa: N802
        return int(self._answer("clock", 1755))

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any) -> int:  # noqa: N802
        return int(self._answer("throttle", 0x4))

    def nvmlDeviceGetPcieThroughput(self, handle: Any, direction: int) -> int:  # noqa: N802
        return int(self._answer("pcie", 2000 if direction else 1000))

    def nvmlDeviceGetFieldValues(self, handle: Any, fields: Any) -> Any:  # noqa: N802
        self._answer("nvlink", None)
        self.mebibytes += 1
        value = SimpleNamespace(ullVal=1024 * self.mebibytes)
        return [SimpleNamespace(nvmlReturn=0, value=value) for _ in fields]


SAMPLE = {
    "utilization_pct": 90.0,
    "memory_used_gib": 60.0,
    "memory_total_gib": 80.0,
    "memory_reserved_gib": 1.0,
    "power_w": 650.0,
    "temperature_c": 71.0,
    "sm_clock_mhz": 1755.0,
    "throttle_bits": 4.0,
    "pcie_tx_mb_s": 1.0,
    "pcie_rx_mb_s": 2.0,
    "nvlink_tx_mb": 1.048576,
    "nvlink_rx_mb": 1.048576,
}


def test_a_training_that_never_logs_keeps_no_more_than_some_samples() -> None:
    sampler = Sampler(lambda: {"power_w": 1.0}, 60.0)
    for _ in range(telemetry._MOST_SAMPLES + 5):
        sampler.sample()
    assert len(sampler._samples) == telemetry._MOST_SAMPLES


def test_a_sample_holds_what_the_card_tells() -> None:
    assert Gpu(Nvml(), "handle").read() == SAMPLE


def test_what_a_card_does_not_tell_is_missing_and_not_asked_again() -> None:
    nvml = Nvml("nvlink", "pcie", "memory v2")
    gpu = Gpu(nvml, "handle")
    missing = {"nvlink_tx_mb", "nvlink_rx_mb", "pcie_tx_mb_s", "pcie_rx_mb_s"}
    expected = {k: v for k, v in SAMPLE.items() if k not in {*missing, "memory_reserved_gib"}}
    assert gpu.read() == gpu.read() == expected
    assert (nvml.asked.count("nvlink"), nvml.asked.count("pcie")) == (1, 1)
    assert nvml.asked.count("power") == 2


@pytest.mark.parametrize(
    ("uuid", "visible", "handle"),
    [
        ("abc-1", "", "handle of GPU-abc-1"),
        ("GPU-abc-1", "", "handle of GPU-abc-1"),
        (None, "", "handle 1"),
        (None, "4,6", "handle 6"),
        (None, "GPU-x,GPU-y", "handle of GPU-y"),
    ],
)
def test_the_gpu_is_the_one_that_cuda_sees(
    monkeypatch: pytest.MonkeyPatch, uuid: str | None, visible: str, handle: str
) -> None:
    properties = SimpleNamespace(uuid=uuid) if uuid else SimpleNamespace()
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert Gpu.of_this_process(Nvml())._handle == handle


def row(**known: float) -> list[float]:
    return [known.get(name, math.nan) for name in FIELDS]


def same(one: list[float], other: list[float]) -> bool:
    return all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(one, other, strict=True))


def test_an_interval_is_means_maxima_rates_and_every_throttle_that_was() -> None:
    samples = [
        (
            10.0,
            {"power_w": 100.0, "temperature_c": 50.0, "nvlink_tx_mb": 5.0, "throttle_bits": 4.0},
        ),
        (
            12.0,
            {"power_w": 300.0, "temperature_c": 40.0, "nvlink_tx_mb": 25.0, "throttle_bits": 8.0},
        ),
    ]
    expected = row(power_w=200.0, temperature_c=50.0, nvlink_tx_mb_s=10.0, throttle_bits=12.0)
    assert same(summarise(samples), expected)
    assert same(summarise([]), unknown())


def test_the_next_interval_begins_anew_but_rates_count_from_the_last_sample() -> None:
    seconds = iter([0.0, 1.0, 3.0])
    gpu = Gpu(Nvml(), "handle")
    sampler = Sampler(gpu.read, 60.0, clock=lambda: next(seconds))
    rate = FIELDS.index("nvlink_tx_mb_s")
    sampler.sample()
    sampler.sample()
    assert sampler.row(reset=False)[rate] == pytest.approx(1.048576)
    assert sampler.row(reset=True)[rate] == pytest.approx(1.048576)
    assert same(sampler.row(reset=False), unknown()), "no sample yet"
    sampler.sample()
    assert sampler.row(reset=True)[rate] == pytest.approx(1.048576 / 2)


def test_a_thread_samples_until_it_is_stopped() -> None:
    sampler = Sampler(Gpu(Nvml(), "handle").read, 0.001)
    sampler.start()
    while math.isnan(sampler.row(reset=False)[0]):
        pass
    sampler.stop()
    assert not sampler._thread.is_alive()


def test_all_gpus_become_keys_and_the_odd_ones_a_line_when_they_change() -> None:
    fleet = Fleet()
    rows = [
        row(sm_clock_mhz=1900.0, throttle_bits=0.0),
        row(sm_clock_mhz=1900.0, throttle_bits=float(0x4 | 0x40)),
        row(sm_clock_mhz=1200.0, throttle_bits=0.0),
        unknown(),
    ]
    assert fleet.values(rows) == {
        "gpu/sm_clock_mhz": 5000 / 3,
        "gpu/sm_clock_mhz/min": 1200.0,
        "gpu/sm_clock_mhz/max": 1900.0,
        "gpu/sm_clock_mhz/min_rank": 2,
        "gpu/sm_clock_mhz/max_rank": 0,
        "gpu/throttled_ranks": 1,
        "gpu/throttle/power_cap": 1,
        "gpu/throttle/hardware_thermal_slowdown": 1,
    }
    assert fleet.complaints(rows) == [
        "GPU of rank 1: throttled by power cap, hardware thermal slowdown; SM clock 1900 MHz, "
        "median of all ranks 1900 MHz",
        "GPU of rank 2: slower than its peers; SM clock 1200 MHz, median of all ranks 1900 MHz",
    ]
    assert fleet.complaints(rows) == [], "said already"
    assert fleet.complaints([unknown()] * 4) == []
    assert len(fleet.complaints(rows)) == 2, "again after it was well"


def test_an_idle_gpu_throttles_as_little_as_one_whose_clocks_somebody_set() -> None:
    assert throttle_names(0x1 | 0x2) == throttle_names(math.nan) == []


def test_telemetry_alone_logs_no_timers(follow: Follow) -> None:
    sampler = Sampler(Gpu(Nvml(), "handle").read, 60.0)
    sampler.sample()
    loop = follow(
        2,
        2,
        generation="0.15",
        config=MetricsConfig(log_gpu_stats_interval=60.0),
        sampler=sampler,
    )
    ((step, values),) = loop.writer.logged
    assert step == 2
    assert {key.partition("/")[0] for key in values} == {"gpu"}
    assert values["gpu/power_w"] == 650.0
    assert loop.lines == [" iteration        2 | loss |"]


def test_without_nvml_one_line_and_training_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml("init"))
    config = MetricsConfig(log_gpu_stats_interval=1.0)
    assert [lifetime._sampler(config, rank) for rank in (0, 1)] == [None, None]
    assert capsys.readouterr().out == (
        "[torch-profile telemetry-failed] warning: training goes on without GPU telemetry: "
        "OSError: init is not supported\n"
    )


def test_memory_is_logged_with_telemetry_or_at_its_own_interval() -> None:
    def logged(**flags: Any) -> list[int]:
        return [i for i in range(5, 21, 5) if MetricsConfig(**flags).memory_at(i)]

    assert logged(log_timers_to_wandb=True) == []
    assert logged(log_gpu_stats_interval=1.0) == [5, 10, 15, 20]
    assert logged(log_gpu_stats_interval=1.0, log_memory_interval=10) == [10, 20]
