# SPDX-License-Identifier: Apache-2.0
"""Devices that are no CUDA or ROCm GPU: their rows are named, with what can be said of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from megatron.torch_trace.wording import counted

ASCEND = "Task Types without a category"
"""Stands for the rows of an Ascend NPU, which its profiler writes without any category."""

ASCEND_MARK = b'"Task Type"'
"""In the text of each such row."""

_DEVICES = (
    ("mtia_", "an MTIA accelerator"),
    ("hpu_", "an HPU (Gaudi)"),
    ("xpu_", "an XPU"),
    ("privateuse1_", "a device of another backend (PrivateUse1)"),
    ("npu", "an NPU"),
    ("mlu_", "an MLU"),
    ("musa_", "a MUSA GPU"),
    ("glow_", "a Glow accelerator"),
    ("tpu", "a TPU"),
    (ASCEND, "an Ascend NPU"),
)


def device_of(category: str) -> str | None:
    """The device that rows of this category are of; None for CUDA, ROCm and the CPU."""
    return next((name for prefix, name in _DEVICES if category.startswith(prefix)), None)


class OtherDevice(NamedTuple):
    """A device that is no CUDA or ROCm GPU.

    Args:
        name: with its article.
        categories: category -> rows.
    """

    name: str
    categories: Mapping[str, int]

    @classmethod
    def among(cls, categories: Mapping[str, int]) -> OtherDevice | None:
        """The device that most rows of these categories are of."""
        rows: dict[str, dict[str, int]] = {}
        for category, count in categories.items():
            device = device_of(category)
            if device and count:
                rows.setdefault(device, {})[category] = count
        if not rows:
            return None
        name = max(rows, key=lambda device: sum(rows[device].values()))
        return cls(name, dict(sorted(rows[name].items(), key=lambda item: -item[1])))

    @property
    def sentence(self) -> str:
        """What the rows are, and what can be said of them."""
        listed = ", ".join(
            counted(count, f"row of {category}", f"rows of {category}")
            for category, count in self.categories.items()
        )
        return (
            f"The trace is of {self.name} ({listed}). The work of this device is not analysed, so "
            "its utilisation is unknown; operators, phases and the CPU's side are analysed, and "
            "the timeline shows all rows."
        )
