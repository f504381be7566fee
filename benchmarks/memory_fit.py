# SPDX-License-Identifier: Apache-2.0
"""What `torch-trace memory --fit` predicts, against what the allocator then really needs.

    python benchmarks/memory_fit.py RUNS                  6 configurations on 2 GPUs, or on 1 GPU
    python benchmarks/memory_fit.py RUNS --cpu --only tp2 the launches alone: no GPU, nothing to say

Each configuration is three trainings. The first one has micro-batches of 1 and a snapshot of one
iteration, from which alone the need of larger micro-batches is predicted. Between the predicted
needs of micro-batches of 4 and of 8 lies the memory that torch is then given: the second training
has micro-batches of 4 and must train, the third one has 8 and must end in torch's own out-of-memory
error. The peak of the second one is predicted, too, and held against `max_memory_allocated`.

All trainings start at once, because most of their time goes into imports; the second and the third
wait for the prediction. RUNS/memory_fit.json has the result, and grows configuration by
configuration.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memory_trainings import REPOSITORY, TINY, USUAL, Training, visible_gpus

FITS, LARGER = 4, 8
WINDOW = 3
WITHIN = 0.03
_OUTSIDE = 2_000_000_000
"""Bytes that `--fit` sets aside for what is not torch's where nothing tells them."""
BASE = (
    f"--torch-profile --torch-profile-iterations {WINDOW}-{WINDOW} --torch-profile-ranks all "
    "--torch-profile-memory-timeline"
)


@dataclass(frozen=True)
class Configuration:
    """How it is trained, and on how many GPUs."""

    flags: str
    gpus: int = 1


FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
CONFIGURATIONS = {
    "plain": Configuration(""),
    "selective": Configuration("--recompute-granularity selective"),
    "full": Configuration(FULL),
    "dp2": Configuration("--use-distributed-optimizer", 2),
    "tp2": Configuration("--tensor-model-parallel-size 2", 2),
    "pp2": Configuration("--pipeline-model-parallel-size 2", 2),
    "swiglu": Configuration("--swiglu --disable-bias-linear --normalization RMSNorm"),
    "long": Configuration("--seq-length 1536 --max-position-embeddings 1536"),
    "grouped": Configuration("--group-query-attention --num-query-groups 4"),
}
ON_TWO = ("plain", "selective", "full", "dp2", "tp2", "pp2")
ON_ONE = ("plain", "selective", "full", "swiglu", "long", "grouped")


class Trial:
    """One configuration: its trainings, what was predicted and what came.

    Args:
        runs: where its folder goes.
        name: of the configuration.
        gpus: one for each rank; None is the CPU.
        port: the first of three.
        quick: a tiny model.
    """

    def __init__(
        self, runs: Path, name: str, gpus: list[int | None], port: int, *, quick: bool
    ) -> None:
        self.name = name
        self.answer: dict[str, Any] = {"gpus": len(gpus), "flags": CONFIGURATIONS[name].flags}
        flags = f"--train-iters 5 --global-batch-size 16 {CONFIGURATIONS[name].flags}"
        model = TINY if quick else USUAL
        base = runs / name / "recorded"
        self._base = Training(base, f"{flags} {BASE} --torch-profile-dir {base}", gpus, port, model)
        self._fits = Training(runs / name / "fits", flags, gpus, port + 1, model)
        self._larger = Training(runs / name / "larger", flags, gpus, port + 2, model)
        self._ranks = len(gpus)
        self._base.begin("--micro-batch-size", 1)

    def run(self, deadline: float) -> None:
        """Record, predict, and hold it against the truth."""
        try:
            self._run(deadline)
        except Exception as error:
            self.answer["error"] = f"{type(error).__name__}: {error}"
        finally:
            for one in (self._base, self._fits, self._larger):
                one.stop()

    def _run(self, deadline: float) -> None:
        found = self._base.wait_for("*.memory_snapshot.pickle", self._ranks, deadline)
        if len(found) < self._ranks:
            self.answer["recorded"] = self._base.end(deadline)
            self.answer["log"] = self._base.excerpt()
            return
        self.answer["recorded"] = "snapshot"
        needs, limit = self._predicted()
        self._fits.begin("--micro-batch-size", FITS, limit=limit)
        self._larger.begin("--micro-batch-size", LARGER, limit=limit)
        self.answer["fits"] = self._fits.end(deadline)
        self.answer["larger"] = self._larger.end(deadline)
        for one, wanted in ((self._fits, "trained"), (self._larger, "out of memory")):
            if self.answer[one.folder.name] != wanted:
                self.answer["log"] = one.excerpt()
        self.answer["peaks"] = [
            _beside(needs[min(number, len(needs) - 1)], facts)
            for number, facts in enumerate(self._fits.facts)
        ]

    def _predicted(self) -> tuple[list[dict[int, Any]], int]:
        """What each stage needs, by micro-batch, and the memory between what fits and what not."""
        fit = _asked(self._base.folder, 10_000.0)
        needs = [{need["micro_batch"]: need for need in one["needs"]} for one in fit["ranks"]]
        most = {size: max(one[size]["bytes"] for one in needs) for size in (1, FITS, LARGER)}
        limit = (most[FITS] + most[LARGER]) // 2
        said = _asked(self._base.folder, (limit + _OUTSIDE) / 1e9)
        self.answer |= {
            "recorded_peaks": [
                one["iterations"][WINDOW - 1].get("peak_bytes") for one in self._base.facts
            ],
            "predicted": [{size: one[size] for size in (1, FITS, LARGER)} for one in needs],
            "limit_bytes": limit,
            "said_to_fit": said["largest_micro_batch"],
            "said_to_fit_perhaps": said["perhaps_micro_batch"],
        }
        return needs, limit

    @property
    def worst(self) -> float | None:
        """By how much the predicted peak is off, as a share; None if nothing came to measure."""
        found = [abs(one["off"]) for one in self.answer.get("peaks", []) if one["off"] is not None]
        return max(found, default=None)

    @property
    def right(self) -> bool:
        """Whether what was said to fit did, and what was not did not."""
        return (self.answer.get("fits"), self.answer.get("larger")) == ("trained", "out of memory")

    @property
    def line(self) -> str:
        answer, worst = self.answer, self.worst
        peak = "no peak" if worst is None else f"peak {worst:.1%} off"
        verdict = "right" if self.right else "WRONG"
        return (
            f"{self.name}: {peak}; fits or not: {verdict} (micro-batch {FITS}: "
            f"{answer.get('fits')}, {LARGER}: {answer.get('larger')}; --fit said "
            f"{answer.get('said_to_fit')}, perhaps {answer.get('said_to_fit_perhaps')}, with "
            f"{answer.get('limit_bytes', 0) / 1e9:.2f} GB){_why(answer)}"
        )


def _why(answer: dict[str, Any]) -> str:
    return "".join(f"\n    {answer[key]}" for key in ("error", "log") if key in answer)


def _beside(needs: dict[int, Any], facts: dict[str, Any]) -> dict[str, Any]:
    """A rank's predicted peak, and what its allocator counted in the iterations after the second.

    The first iterations make the optimizer state, and may peak elsewhere.
    """
    counted = facts["iterations"][2:]
    peak = max((one["peak_bytes"] for one in counted if "peak_bytes" in one), default=None)
    return {
        "predicted_bytes": needs[FITS]["peak_bytes"],
        "peak_bytes": peak,
        "reserved_bytes": max((one.get("reserved_bytes", 0) for one in counted), default=None),
        "off": needs[FITS]["peak_bytes"] / peak - 1 if peak else None,
    }


def _asked(folder: Path, gigabytes: float) -> dict[str, Any]:
    """What `torch-trace memory --fit --json` says of a run on GPUs of such a size."""
    command = [sys.executable, "-m", "megatron.torch_trace", "memory", str(folder), "--fit"]
    done = subprocess.run(
        [*command, "--json", "--gpu-memory", f"{gigabytes:.6f}"],
        capture_output=True, text=True, cwd=REPOSITORY,
    )  # fmt: skip
    if done.returncode not in (0, 3):
        raise RuntimeError(done.stderr.strip())
    found: dict[str, Any] = json.loads(done.stdout)["fit"]
    if found["unknown"]:
        raise RuntimeError(found["unknown"])
    return found


def _gpus(count: int, number: int, have: int) -> list[int | None]:
    """GPUs of a configuration; those with one take turns."""
    if not have:
        return [None] * count
    return list(range(count)) if count > 1 else [number % have]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, help="one folder a configuration goes here")
    parser.add_argument("--seconds", type=float, default=100, help="for everything")
    parser.add_argument("--port", type=int, default=29_700, help="the first of three each")
    parser.add_argument("--only", nargs="+", choices=list(CONFIGURATIONS), metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="a tiny model")
    parser.add_argument("--cpu", action="store_true", help="no GPU, even if there is one")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    have = 0 if options.cpu else visible_gpus()
    names = options.only or (ON_TWO if have > 1 else ON_ONE)
    trials = [
        Trial(
            options.runs, name, _gpus(CONFIGURATIONS[name].gpus, number, have),
            options.port + 3 * number, quick=options.quick or options.cpu,
        )
        for number, name in enumerate(names)
    ]  # fmt: skip
    lock = threading.Lock()
    result: dict[str, Any] = {}

    def follow(trial: Trial) -> None:
        trial.run(deadline)
        with lock:
            print(
                f"{options.seconds - deadline + time.monotonic():.0f} s: {trial.line}", flush=True
            )
            result[trial.name] = trial.answer
            (options.runs / "memory_fit.json").write_text(json.dumps(result, indent=1) + "\n")

    threads = [threading.Thread(target=follow, args=(one,)) for one in trials]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    close = [one for one in trials if one.worst is not None and one.worst <= WITHIN]
    print(
        f"peak at most {WITHIN:.0%} off: {len(close)} of {len(trials)}; fits or not right: "
        f"{sum(one.right for one in trials)} of {len(trials)}"
    )


if __name__ == "__main__":
    main()
