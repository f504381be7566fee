# SPDX-License-Identifier: Apache-2.0
"""What happens in which iteration of the long run: faults, kills, requests (long_run.py)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

RANKS, MICRO_BATCHES, LAYERS = 2, 2, 4
GLOBAL_BATCH = RANKS * MICRO_BATCHES
SLEEPING_LAYER = 2
DATA, FORWARD, LEAK = "data", "forward", "leak"
KILL, TERMINATE = "SIGKILL to all processes", "SIGTERM to torchrun"


@dataclass(frozen=True)
class Fault:
    """What one rank does wrong for some iterations.

    Args:
        kind: `DATA`: the dataset sleeps in each sample, in the loader's process; `FORWARD`: the MLP
            of one layer sleeps in each forward; `LEAK`: memory of the host is kept.
        rank: which.
        first, last: global iterations.
        amount: seconds of a sleep, or MB of an iteration.
    """

    kind: str
    rank: int
    first: int
    last: int
    amount: float

    def covers(self, iteration: int) -> bool:
        """Whether the rank does it in this iteration."""
        return self.first <= iteration <= self.last


@dataclass(frozen=True)
class Plan:
    """Of a whole run.

    Args:
        iterations: of the training.
        cycle: iterations from one planned window to the next.
        save, evaluate: every so many iterations.
        apart: seconds between two windows that slow iterations ask for.
        faults: injected.
        kills: iteration in which a launch ends -> how.
        asks: iterations at which a window is asked for by a file.
        signals: the same by SIGUSR2.
    """

    iterations: int
    cycle: int
    save: int
    evaluate: int
    apart: int
    faults: tuple[Fault, ...]
    kills: tuple[tuple[int, str], ...]
    asks: tuple[int, ...]
    signals: tuple[int, ...]

    def write(self, file: Path) -> None:
        """For the processes of the training."""
        file.write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, file: Path) -> Plan:
        """In a process of the training."""
        told: dict[str, Any] = json.loads(file.read_text())
        faults = tuple(Fault(**one) for one in told.pop("faults"))
        return cls(**told, faults=faults)


def long(iterations: int, windows: int) -> Plan:
    """Two relaunches."""

    def at(share: float) -> int:
        return round(share * iterations)

    return Plan(
        iterations,
        cycle=iterations // windows,
        save=max(5, iterations // 20),
        evaluate=max(5, iterations // 8),
        apart=60,
        faults=(
            Fault(DATA, 1, at(0.2), at(0.2) + 29, 0.6),
            Fault(FORWARD, 0, at(0.5), at(0.5) + 39, 0.3),
            Fault(LEAK, 1, at(0.75), iterations, 1.0),
        ),
        kills=((at(0.355), KILL), (at(0.705), TERMINATE)),
        asks=(at(0.1), at(0.6)),
        signals=(at(0.3), at(0.85)),
    )


def quick() -> Plan:
    """One relaunch, in five minutes; too short for a leak to be told from the first iterations."""
    return Plan(
        60,
        cycle=15,
        save=15,
        evaluate=30,
        apart=10,
        faults=(
            Fault(DATA, 1, 20, 29, 1.0),
            Fault(FORWARD, 0, 37, 46, 0.8),
        ),
        kills=((34, KILL),),
        asks=(6,),
        signals=(49,),
    )
