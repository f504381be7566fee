# SPDX-License-Identifier: Apache-2.0
"""Components as `megatron.torch_profile.component` measures them, beside triton.testing.do_bench.

    python benchmarks/component_against_triton.py [--out FOLDER]      on a GPU

Norm (eager, operators, compiled), attention (unfused, SDPA, flash), a mixture of 8 experts (one
after the other, grouped), a whole layer and its attention, also of Transformer Engine where it is
installed, and the roofline of the card. One line of JSON for each variant: both medians in us, and
the one divided by the other.

The speed of the CPU moves from second to second, and it sets the time of a step whose launches the
GPU waits for. So both measure the same component by turns, five times each. `ratio` is of the
medians of their medians; `ratio_of_least` is of their least medians, which the CPU held up least;
`command_us` is what the command said before.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import torch

from megatron.torch_profile.component import ready
from megatron.torch_profile.component.answer.kept import keep
from megatron.torch_profile.component.answer.text import render
from megatron.torch_profile.component.building import built_step
from megatron.torch_profile.component.config import Config, read
from megatron.torch_profile.component.measure.clocks import clock_of
from megatron.torch_profile.component.run import run
from megatron.torch_profile.component.step import Step
from megatron.torch_profile.component.variants import Case, cases

CONFIGS = ("layer", "attention", "norm", "moe", "self_attention")
FOLDER = Path(__file__).resolve().parents[1] / "examples" / "component"


TURNS = 5
"""Of each."""


def by_turns(case: Case, config: Config, device: str) -> tuple[list[float], list[float]]:
    """Medians in us: of our clock, of triton.testing.do_bench, and again."""
    if case.compile is not None:
        torch._dynamo.reset()
    step = built_step(case, config, device)
    clock = clock_of(device, flush=config.flush_l2)
    for _ in range(max(1, config.warmup)):
        step.prepare()
        step()
        step.check_shapes()
    tensors = (*step.component.parameters(), *step.component.inputs)
    wanted = [one for one in tensors if one.requires_grad]
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(TURNS):
        ours.append(median(clock.times(step, config.measure)) / 1e3)
        if device == "cuda":
            theirs.append(by_triton(step, wanted))
    return ours, theirs


def by_triton(step: Step, wanted: list[torch.Tensor]) -> float:
    """The median in us."""
    found = import_module("triton.testing").do_bench(
        step, warmup=10, rep=60, grad_to_none=wanted, return_mode="median"
    )
    return 1e3 * float(found)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="component_against_triton")
    parser.add_argument("--only", nargs="*", default=CONFIGS)
    parser.add_argument("--seconds", type=float, default=75, help="begin no config after this")
    parser.add_argument("--override", action="append", default=[])
    words = parser.parse_args()
    began = time.monotonic()
    for name in words.only:
        if time.monotonic() - began > words.seconds:
            print(json.dumps({"config": name, "left_out": "no time left"}), flush=True)
            continue
        changes = (f"dir={words.out}", "measure=60", "warmup=20", *words.override)
        try:
            measure(name, read(str(FOLDER / f"{name}.yaml"), changes))
        except Exception as error:
            print(json.dumps({"config": name, "failed": repr(error)[:500]}), flush=True)
        print(f"{name}: {time.monotonic() - began:.0f} s so far", file=sys.stderr, flush=True)


def measure(name: str, config: Config) -> None:
    """One config, by both."""
    answer = run(config)
    keep(answer)
    print(render(answer), file=sys.stderr, flush=True)
    wanted = cases(config)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with ready.surroundings(wanted, config, device):
        for case, one in zip(wanted, answer.results, strict=True):
            if one.summary is None:
                print(json.dumps({"config": name, "variant": case.name, "failed": one.failure}))
                continue
            ours, theirs = by_turns(case, config, device)
            row: dict[str, Any] = {
                "config": name,
                "variant": case.name,
                "ours_us": round(median(ours), 2),
                "turns_ours": [round(us, 2) for us in ours],
                "command_us": round(one.summary.median / 1e3, 2),
                "gpu_us": None if one.gpu_ns is None else round(one.gpu_ns / 1e3, 2),
                "findings": [finding.code for finding in one.findings],
            }
            if theirs:
                row["triton_us"] = round(median(theirs), 2)
                row["turns_triton"] = [round(us, 2) for us in theirs]
                row["ratio"] = round(median(ours) / median(theirs), 3)
                row["ratio_of_least"] = round(min(ours) / min(theirs), 3)
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
