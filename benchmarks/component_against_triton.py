# SPDX-License-Identifier: Apache-2.0
"""Components as `megatron.torch_profile.component` measures them, beside triton.testing.do_bench.

    python benchmarks/component_against_triton.py [--out FOLDER]      on a GPU

Norm (eager, operators, compiled), attention (unfused, SDPA, flash), a mixture of 8 experts (one
after the other, grouped), a whole layer, and the roofline of the card. One line of JSON for each
variant: both medians in us, and the one divided by the other.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch

from megatron.torch_profile.component import ready
from megatron.torch_profile.component.answer.kept import keep
from megatron.torch_profile.component.answer.text import render
from megatron.torch_profile.component.building import built_step
from megatron.torch_profile.component.config import Config, read
from megatron.torch_profile.component.run import run
from megatron.torch_profile.component.variants import Case, cases

CONFIGS = ("norm", "attention", "moe", "layer")
FOLDER = Path(__file__).resolve().parents[1] / "examples" / "component"


def by_triton(case: Case, config: Config, device: str) -> float:
    """The median in us."""
    from triton.testing import do_bench

    if case.compile is not None:
        torch._dynamo.reset()
    step = built_step(case, config, device)
    step()
    tensors = (*step.component.parameters(), *step.component.inputs)
    wanted = [one for one in tensors if one.requires_grad]
    median = do_bench(step, warmup=25, rep=200, grad_to_none=wanted, return_mode="median")
    return 1e3 * float(median)


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
        changes = (f"dir={words.out}", "measure=100", "warmup=10", *words.override)
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
            ours = one.summary.median / 1e3
            theirs = by_triton(case, config, device) if device == "cuda" else float("nan")
            row = {"config": name, "variant": case.name, "ours_us": round(ours, 2)}
            if theirs == theirs:
                row |= {"triton_us": round(theirs, 2), "ratio": round(ours / theirs, 3)}
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
