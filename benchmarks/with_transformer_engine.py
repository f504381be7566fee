# SPDX-License-Identifier: Apache-2.0
"""Transformer Engine under the profiler: training in bf16 and in FP8.

    python benchmarks/with_transformer_engine.py RUNS [--seconds 100] [--only versions bf16 fp8]

Needs a GPU and Transformer Engine. A small GPT trains for 20 iterations with
`--transformer-impl transformer_engine`; three are recorded. One line of JSON each: the families of
kernels by their share of GPU time, the kernels that have none, FLOPs of modules beside Megatron's
own count, and modules with their calls. Its layer, norm and attention by themselves are variants
in `benchmarks/component_against_triton.py`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
LAYERS, HIDDEN, SEQUENCE = 4, 2048, 2048
TRAIN = (
    f"--num-layers {LAYERS} --hidden-size {HIDDEN} --num-attention-heads 16 "
    f"--seq-length {SEQUENCE} --max-position-embeddings {SEQUENCE} "
    "--micro-batch-size 2 --global-batch-size 4 "
    "--train-iters 20 --lr 1e-4 --bf16 --mock-data --tokenizer-type NullTokenizer "
    "--vocab-size 32000 --log-interval 1 --eval-interval 1000 --eval-iters 0 "
    "--normalization RMSNorm --position-embedding-type rope --no-rope-fusion "
    "--no-gradient-accumulation-fusion "
    "--transformer-impl transformer_engine --disable-bias-linear --swiglu "
    "--no-gradient-accumulation-fusion "
    "--torch-profile --torch-profile-skip-first 12 --torch-profile-active 3 "
    "--torch-profile-spans phases modules --torch-profile-record-shapes"
)
FLAGS = {"bf16": "", "fp8": "--fp8-format hybrid --fp8-amax-history-len 16"}


def say(**row: Any) -> None:
    """One line of JSON, at once."""
    print(json.dumps(row), flush=True)


def versions(folder: Path) -> None:
    """What is here."""
    import torch
    import transformer_engine
    import transformer_engine.pytorch as engine

    layer = engine.Linear(1024, 1024, params_dtype=torch.bfloat16).cuda()
    x = torch.randn(256, 1024, device="cuda", dtype=torch.bfloat16)
    with engine.fp8_autocast(enabled=True):
        finite = bool(layer(x).isfinite().all())
    say(part="versions", torch=torch.__version__, te=transformer_engine.__version__, fp8=finite)


def training(name: str) -> Callable[[Path], None]:
    """A part that trains."""

    def train(folder: Path) -> None:
        run = folder / name
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1",
            str(REPOSITORY / "pretrain_gpt.py"), *TRAIN.split(), *FLAGS[name].split(),
            "--torch-profile-dir", str(run),
        ]  # fmt: skip
        log = folder / f"{name}.log"
        with log.open("w") as out:
            done = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=False)
        if done.returncode:
            say(part=name, failed=log.read_text()[-2500:])
            return
        read(name, next(run.rglob("*.pt.trace.json*")))

    return train


def read(name: str, trace: Path) -> None:
    """What the read side makes of the trace."""
    words = [sys.executable, "-m", "megatron.torch_trace", "analyze", str(trace), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    (trace.parent / "analyze.json").write_text(done.stdout)
    answer = json.loads(done.stdout)
    rank = answer["ranks"][0]
    gpu = sum(one["time_ns"] for one in rank["families"])
    say(part=name, families={one["family"]: part(one, gpu) for one in rank["families"]})
    others = [
        [one["name"][:160], one["calls"], part(one, gpu)]
        for one in rank["kernels"]
        if one["family"] in ("other", "triton")
    ]
    say(part=name, without_family=others[:12])
    products = [one["name"][:60] for one in rank["kernels"] if one["family"] == "gemm"]
    say(part=name, products=products[:12])
    say(part=name, account=rank["module_account"], mfu=answer["mfu"])
    keys = ("type", "calls", "backward_calls", "flops", "backward_flops", "tflops", "peak_share")
    for one in rank["module_classes"]:
        say(part=name, module={key: one[key] for key in keys})
    say(part=name, findings=[one["code"] for one in answer["findings"]])


def part(row: dict[str, Any], whole: int) -> float:
    """Share of the GPU's time."""
    return round(int(row["time_ns"]) / whole, 4)


PARTS = {"versions": versions, "bf16": training("bf16"), "fp8": training("fp8")}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", type=Path, help="folder for runs, which is made")
    parser.add_argument("--seconds", type=float, default=100, help="begin no part after so many")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    words = parser.parse_args()
    words.runs.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    for name in words.only:
        if time.monotonic() - began > words.seconds:
            say(part=name, left_out="no time left")
            continue
        try:
            PARTS[name](words.runs)
        except Exception as error:
            say(part=name, failed=repr(error)[:1500])
        say(part=name, seconds=round(time.monotonic() - began, 1))


if __name__ == "__main__":
    main()
