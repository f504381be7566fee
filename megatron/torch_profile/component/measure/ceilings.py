# SPDX-License-Identifier: Apache-2.0
"""What this device can do, measured once and kept: how fast it copies, how fast it multiplies.

A data sheet's numbers are reached by nobody; a ceiling is what a plain copy and a plain matrix
product reach here. They are kept in ~/.cache/torch-profile/ceilings.json, by device, version of
torch and dtype.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from megatron.torch_profile.component.measure.clocks import clock_of
from megatron.torch_profile.component.measure.work import Work
from megatron.torch_trace.files.atomic import atomic_path
from megatron.torch_trace.wording import counted

_COPIED_BYTES = {"cuda": 1 << 30, "cpu": 64 << 20}
_SIDE = {"cuda": 8192, "cpu": 768}
_WARMUP, _MEASURED = 3, 10
EIGHT_BIT = "float8_e4m3fn"
"""The dtype of products in FP8, whichever of the two formats."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What a device reaches.

    Args:
        device: its name.
        dtype: of the matrix product.
        bytes_per_s: read and written by a copy.
        flops_per_s: of a large matrix product.
        measured: when, to the minute.
    """

    device: str
    dtype: str
    bytes_per_s: float
    flops_per_s: float
    measured: str

    def least_ns(self, work: Work) -> float:
        """The time in which the work could be done at best."""
        return 1e9 * max(work.bytes / self.bytes_per_s, work.flops / self.flops_per_s)

    def bound_by(self, work: Work) -> str:
        """Which of the two ceilings is the lower one for this work."""
        memory = work.bytes / self.bytes_per_s >= work.flops / self.flops_per_s
        return "memory" if memory else "compute"


class CeilingsCache:
    """Ceilings that have been measured here before.

    Args:
        path: the file, in a folder that need not be there.
        measure: for a device and a dtype.
    """

    def __init__(
        self, path: Path | None = None, measure: Callable[[str, str], Ceilings] | None = None
    ) -> None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self._path = path or cache / "torch-profile" / "ceilings.json"
        self._measure = measure or measured
        self._known = self._read()

    def get(self, device: str, dtype: str) -> Ceilings:
        """Of a device, measured now if they are not known."""
        key = _key(device, dtype)
        try:
            return Ceilings(**self._known[key])
        except (KeyError, TypeError):
            found = self._measure(device, dtype)
        self._keep(key, found)
        return found

    def _keep(self, key: str, found: Ceilings) -> None:
        self._known[key] = asdict(found)
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_path(self._path) as unfinished:
                unfinished.write_text(json.dumps(self._known, indent=1) + "\n")

    def again(self, device: str, dtype: str) -> Ceilings:
        """Measure them once more, and keep what is higher."""
        before, now = self.get(device, dtype), self._measure(device, dtype)
        found = replace(
            now,
            bytes_per_s=max(now.bytes_per_s, before.bytes_per_s),
            flops_per_s=max(now.flops_per_s, before.flops_per_s),
        )
        self._keep(_key(device, dtype), found)
        return found

    def _read(self) -> dict[str, Any]:
        try:
            known = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}


def _key(device: str, dtype: str) -> str:
    return f"{device_name(device)}, torch {torch.__version__}, {dtype}"


def device_name(device: str) -> str:
    """`NVIDIA H200`; of a CPU how many threads torch uses."""
    if device == "cuda":
        return str(torch.cuda.get_device_name())
    return f"CPU, {counted(torch.get_num_threads(), 'thread')}"


def measured(device: str, dtype: str) -> Ceilings:
    """Copy and multiply."""
    copied, side = _COPIED_BYTES[device], _SIDE[device]
    copy_ns = _least_ns(device, _copy(copied, device))
    product_ns = _least_ns(device, _product(side, dtype, device))
    return Ceilings(
        device=device_name(device),
        dtype=dtype,
        bytes_per_s=1e9 * 2 * copied / copy_ns,
        flops_per_s=1e9 * 2 * side**3 / product_ns,
        measured=datetime.now().astimezone().isoformat(timespec="minutes"),
    )


def _copy(size: int, device: str) -> Callable[[], Any]:
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def _product(side: int, dtype: str, device: str) -> Callable[[], Any]:
    kind: torch.dtype = getattr(torch, dtype)
    a, b = (torch.randn(side, side, device=device).to(kind) for _ in range(2))
    if dtype == EIGHT_BIT:
        one = torch.ones((), device=device)
        # The second matrix has to lie by columns.
        return lambda: torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16)
    return lambda: a @ b


def _least_ns(device: str, call: Callable[[], Any]) -> int:
    clock = clock_of(device, flush=False)
    with torch.no_grad():
        clock.times(_Plain(call), _WARMUP)
        # A ceiling is the best that is reached: others may be at work meanwhile.
        return min(clock.times(_Plain(call), _MEASURED))


class _Plain:
    """A call as a step."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call

    def prepare(self) -> None:
        """Nothing."""

    def __call__(self) -> None:
        """The call."""
        self._call()

    def check_shapes(self) -> None:
        """Nothing."""
