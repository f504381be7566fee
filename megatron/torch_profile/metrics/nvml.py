# SPDX-License-Identifier: Apache-2.0
"""One GPU through NVML (nvidia-ml-py): what it tells at this moment, as far as the card tells."""

from __future__ import annotations

import math
import os
from typing import Any

GIB = 1024.0**3

THROTTLES = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""Bits of NVML's clock event reasons that slow a busy GPU down. Idle, clocks that somebody set and
sync boost are none."""


class Gpu:
    """The GPU that this process trains on.

    Args:
        nvml: the module `pynvml`.
        handle: NVML's handle of the GPU.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._silent: set[str] = set()

    @classmethod
    def of_this_process(cls, nvml: Any) -> Gpu:
        """Find it by what CUDA says of its current device.

        Raises:
            Exception: NVML is not there, or does not know the GPU.
        """
        import torch

        nvml.nvmlInit()
        device = torch.cuda.current_device()
        uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
        if uuid is not None:
            text = str(uuid)
            if not text.startswith(("GPU-", "MIG-")):
                text = f"GPU-{text}"
            return cls(nvml, nvml.nvmlDeviceGetHandleByUUID(text))
        # NVML numbers all GPUs of the node, CUDA the visible ones.
        visible = [word for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word]
        name = visible[device] if device < len(visible) else str(device)
        if name.isdigit():
            return cls(nvml, nvml.nvmlDeviceGetHandleByIndex(int(name)))
        return cls(nvml, nvml.nvmlDeviceGetHandleByUUID(name))

    def read(self) -> dict[str, float]:
        """One sample; what the card does not tell is missing.

        Returns:
            utilization_pct, power_w, temperature_c, sm_clock_mhz, memory_{used,reserved,total}_gib
            (reserved: by driver and firmware), throttle_bits, pcie_{tx,rx}_mb_s, and counters
            nvlink_{tx,rx}_mb since boot; 1 MB = 10^6 bytes.
        """
        questions = (
            self._utilization,
            self._memory,
            self._power,
            self._temperature,
            self._clock,
            self._throttle,
            self._pcie,
            self._nvlink,
        )
        sample: dict[str, float] = {}
        for question in questions:
            if question.__name__ in self._silent:
                continue
            try:
                sample.update(question())
            except Exception:
                # Not supported stays so; what fails now is not asked again either.
                self._silent.add(question.__name__)
        return {name: float(value) for name, value in sample.items()}

    def memory_used_gib(self) -> float:
        """What all processes use of the card now."""
        return self._memory()["memory_used_gib"]

    def _utilization(self) -> dict[str, float]:
        return {"utilization_pct": self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu}

    def _memory(self) -> dict[str, float]:
        nvml = self._nvml
        try:
            # Without the version "used" holds what the driver keeps for itself.
            memory = nvml.nvmlDeviceGetMemoryInfo(self._handle, version=nvml.nvmlMemory_v2)
        except Exception:
            memory = nvml.nvmlDeviceGetMemoryInfo(self._handle)
        values = {"memory_used_gib": memory.used / GIB, "memory_total_gib": memory.total / GIB}
        if hasattr(memory, "reserved"):
            values["memory_reserved_gib"] = memory.reserved / GIB
        return values

    def _power(self) -> dict[str, float]:
        return {"power_w": self._nvml.nvmlDeviceGetPowerUsage(self._handle) / 1e3}

    def _temperature(self) -> dict[str, float]:
        ask = self._nvml.nvmlDeviceGetTemperature
        return {"temperature_c": ask(self._handle, self._nvml.NVML_TEMPERATURE_GPU)}

    def _clock(self) -> dict[str, float]:
        ask = self._nvml.nvmlDeviceGetClockInfo
        return {"sm_clock_mhz": ask(self._handle, self._nvml.NVML_CLOCK_SM)}

    def _throttle(self) -> dict[str, float]:
        ask = self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons
        return {"throttle_bits": ask(self._handle)}

    def _pcie(self) -> dict[str, float]:
        nvml, handle = self._nvml, self._handle
        # NVML measures 20 ms for each, in KB/s.
        sent = nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_TX_BYTES)
        received = nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_RX_BYTES)
        return {"pcie_tx_mb_s": sent / 1e3, "pcie_rx_mb_s": received / 1e3}

    def _nvlink(self) -> dict[str, float]:
        nvml = self._nvml
        # All links together is "link" 2^32 - 1; the counters are in KiB.
        every_link = 0xFFFFFFFF
        sent, received = nvml.nvmlDeviceGetFieldValues(
            self._handle,
            [
                (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, every_link),
                (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, every_link),
            ],
        )
        if sent.nvmlReturn or received.nvmlReturn:
            raise OSError("no NVLink counters")
        return {
            "nvlink_tx_mb": sent.value.ullVal * 1024 / 1e6,
            "nvlink_rx_mb": received.value.ullVal * 1024 / 1e6,
        }


def throttle_names(bits: float) -> list[str]:
    """Which of `THROTTLES` are set; none where unknown."""
    return [] if math.isnan(bits) else [n for bit, n in THROTTLES.items() if int(bits) & bit]
