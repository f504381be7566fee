# SPDX-License-Identifier: Apache-2.0
"""GPU telemetry: a thread that samples this rank's GPU, a summary of all ranks per log interval."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from statistics import fmean, median

from megatron.torch_profile.log import Slug, warn
from megatron.torch_profile.metrics.across_ranks import spread
from megatron.torch_profile.metrics.nvml import THROTTLES, throttle_names

_MEANS = (
    "utilization_pct",
    "power_w",
    "sm_clock_mhz",
    "pcie_tx_mb_s",
    "pcie_rx_mb_s",
)
_MAXIMA = ("temperature_c", "memory_used_gib", "memory_reserved_gib", "memory_total_gib")
_RATES = {"nvlink_tx_mb": "nvlink_tx_mb_s", "nvlink_rx_mb": "nvlink_rx_mb_s"}
QUANTITIES = (*_MEANS, *_MAXIMA, *_RATES.values())
"""What becomes `gpu/<quantity>` and its spread over ranks."""

FIELDS = (*QUANTITIES, "throttle_bits")
"""One rank's row."""

SLOW_CLOCK = 0.9
"""A GPU whose SM clock is below this share of the median of all GPUs differs from its peers."""

Sample = dict[str, float]
_MOST_SAMPLES = 10_000
"""Of an interval; when nobody asks any more, the oldest go."""


class Sampler:
    """Reads one GPU every few seconds in a thread of its own, until it is stopped.

    Args:
        read: one sample, as `nvml.Gpu.read` returns it.
        interval: seconds between samples.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        read: Callable[[], Sample],
        interval: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._interval = interval
        self._clock = clock
        self._lock = threading.Lock()
        self._samples: deque[tuple[float, Sample]] = deque(maxlen=_MOST_SAMPLES)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="torch-profile-nvml", daemon=True)

    def start(self) -> None:
        """Begin sampling."""
        self._thread.start()

    def stop(self) -> None:
        """End; waits a moment for a sample in progress."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)

    def sample(self) -> None:
        """Take one sample now."""
        sample = self._read()
        with self._lock:
            self._samples.append((self._clock(), sample))

    def row(self, *, reset: bool) -> list[float]:
        """`FIELDS` of the interval; NaN where nothing is known.

        Args:
            reset: begin the next interval. Its rates count from the last sample of this one.
        """
        with self._lock:
            samples = list(self._samples)
            if reset:
                # Nobody asked for more than counters to be carried over.
                self._samples.clear()
                self._samples.extend(
                    (when, {k: v for k, v in sample.items() if k in _RATES})
                    for when, sample in samples[-1:]
                )
        return summarise(samples)

    def _run(self) -> None:
        try:
            while not self._end.is_set():
                self.sample()
                self._end.wait(self._interval)
        except Exception as error:
            warn(
                Slug.TELEMETRY_FAILED,
                "training goes on without GPU telemetry of this rank: %s: %s",
                type(error).__name__,
                error,
            )


def unknown() -> list[float]:
    """The row of a rank without telemetry."""
    return [math.nan] * len(FIELDS)


def summarise(samples: Sequence[tuple[float, Sample]]) -> list[float]:
    """One rank's samples of an interval as one row.

    Args:
        samples: (seconds, sample), ascending.

    Returns:
        `FIELDS`: means of utilisation, power, clock and PCIe traffic, maxima of temperature and
        memory, NVLink's counters as rates between the first and the last sample, and every
        throttle bit that was set in any sample.
    """
    row = dict.fromkeys(FIELDS, math.nan)
    for names, reduce in ((_MEANS, fmean), (_MAXIMA, max)):
        for name in names:
            known = [sample[name] for _, sample in samples if name in sample]
            if known:
                row[name] = reduce(known)
    for counter, rate in _RATES.items():
        counts = [(when, sample[counter]) for when, sample in samples if counter in sample]
        if len(counts) > 1 and counts[-1][0] > counts[0][0]:
            row[rate] = (counts[-1][1] - counts[0][1]) / (counts[-1][0] - counts[0][0])
    bits = [int(sample["throttle_bits"]) for _, sample in samples if "throttle_bits" in sample]
    if bits:
        seen = 0
        for one in bits:
            seen |= one
        row["throttle_bits"] = seen
    return [row[name] for name in FIELDS]


class Fleet:
    """All ranks' GPUs; remembers what it has complained about."""

    def __init__(self) -> None:
        self._complained: tuple[str, ...] = ()

    def values(self, rows: Sequence[Sequence[float]]) -> dict[str, float]:
        """Keys of an interval.

        Args:
            rows: shape [world size, `FIELDS`].

        Returns:
            `gpu/<quantity>` with its spread, `gpu/throttled_ranks`, and `gpu/throttle/<reason>`,
            the number of ranks with that reason, for reasons that occurred.
        """
        values: dict[str, float] = {}
        for index, name in enumerate(QUANTITIES):
            values |= spread(f"gpu/{name}", [row[index] for row in rows])
        bits = [row[-1] for row in rows]
        if any(not math.isnan(one) for one in bits):
            names = [throttle_names(one) for one in bits]
            values["gpu/throttled_ranks"] = sum(bool(some) for some in names)
            for reason in THROTTLES.values():
                ranks = sum(reason in some for some in names)
                if ranks:
                    values[f"gpu/throttle/{reason.replace(' ', '_')}"] = ranks
        return values

    def complaints(self, rows: Sequence[Sequence[float]]) -> list[str]:
        """One line for each GPU that throttles or is slower than its peers, when that changes.

        Args:
            rows: shape [world size, `FIELDS`].
        """
        clocks = [row[FIELDS.index("sm_clock_mhz")] for row in rows]
        known = [clock for clock in clocks if not math.isnan(clock)]
        usual = median(known) if known else math.nan
        lines, reasons = [], []
        for rank, (row, clock) in enumerate(zip(rows, clocks, strict=True)):
            why = throttle_names(row[-1])
            slow = clock < SLOW_CLOCK * usual
            if not why and not slow:
                continue
            reasons.append(f"{rank}: {why} {slow}")
            lines.append(
                f"GPU of rank {rank}: "
                + (f"throttled by {', '.join(why)}" if why else "slower than its peers")
                + f"; SM clock {clock:.0f} MHz, median of all ranks {usual:.0f} MHz"
            )
        if tuple(reasons) == self._complained:
            return []
        self._complained = tuple(reasons)
        return lines
