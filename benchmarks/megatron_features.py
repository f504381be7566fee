# SPDX-License-Identifier: Apache-2.0
"""Features of Megatron that bypass its plain schedules and modules: is a trace of them whole?

    python benchmarks/megatron_features.py RUNS                   all parts, 2 GPUs, side by side
    python benchmarks/megatron_features.py RUNS --only moe-overlap
    python benchmarks/megatron_features.py RUNS --cpu             over gloo, a small model

Every part is trained twice, without a flag of ours and with a window. One line for each, `pass` or
`FAIL`: losses the same to the bit; a trace of each rank; the micro-batches of each step, forward
and backward, by their names; GPU work in modules; GPU work whose family is not known (at most 2 %).
RUNS/megatron_features.json has them all. Parts `te-...` need Transformer Engine, `apex-...` Apex
without Transformer Engine: each is used wherever it is found.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from memory_trainings import REPOSITORY, Model, Training, visible_gpus

sys.path.insert(0, str(REPOSITORY))

MICROBATCHES = 4
SMALL, TINY = Model(4, 512, 8, 512, 8_192), Model(4, 64, 4, 64, 256)
SPANS = "--torch-profile-spans phases modules"
SHARDED = "--no-gradient-accumulation-fusion --untie-embeddings-and-output-weights"
QUEUES = {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}
MOST_WITHOUT_FAMILY = 0.02
EXPERTS = (
    "--num-experts 4 --expert-model-parallel-size 2 --moe-router-topk 2 "
    "--moe-token-dispatcher-type alltoall --moe-router-load-balancing-type none "
    "--no-bias-gelu-fusion"
)


@dataclass(frozen=True)
class Part:
    """One configuration.

    Args:
        flags: of Megatron.
        gpus: one process each.
        window: iterations that are recorded.
        environment: variables of it.
        needs_gpu: it does not start without one.
        needs: a package without which it does not start.
        replayed: last iterations of the window that one CUDA graph replays as a whole.
    """

    flags: str
    gpus: int = 2
    window: str = "6-7"
    environment: dict[str, str] = field(default_factory=dict)
    needs_gpu: bool = False
    needs: str = ""
    replayed: int = 0


SAME_TWICE = {"NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0"}
"""Transformer Engine's attention then gives the same digits twice, and does not do some things."""


def with_engine(flags: str, gpus: int = 2, **environment: str) -> Part:
    """One with Transformer Engine."""
    return Part(
        "--transformer-impl transformer_engine --normalization RMSNorm "
        f"--no-gradient-accumulation-fusion {flags}",
        gpus,
        environment={**SAME_TWICE, **environment},
        needs_gpu=True,
        needs="transformer_engine",
    )


def with_apex(flags: str, gpus: int = 2) -> Part:
    """One with Apex: its norms, softmax, Adam, and gradients added by the product itself."""
    return Part(f"--hidden-size 1024 {flags}", gpus, needs_gpu=True, needs="apex")


ANY_TWICE = {"NVTE_ALLOW_NONDETERMINISTIC_ALGO": "1"}
CP2 = "--attention-dropout 0 --hidden-dropout 0 --context-parallel-size 2 --cp-comm-type"
CP4 = "--attention-dropout 0 --hidden-dropout 0 --context-parallel-size 4"
NAN = "--no-check-for-nan-in-loss-and-grad"
FULL_GRAPH = f"--cuda-graph-impl full_iteration --te-rng-tracker {NAN}"
OFFLOADED = (
    f"{NAN} --fine-grained-activation-offloading --min-offloaded-tensor-size 1024 --offload-modules"
)
OVERLAPS = "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"
TP2_SP = "--tensor-model-parallel-size 2 --sequence-parallel"
PARTS = {
    "dp2": Part(OVERLAPS),
    "graphs": Part("--cuda-graph-impl local --te-rng-tracker", 1, needs_gpu=True),
    "graphs-from-eager": Part(
        "--cuda-graph-impl local --te-rng-tracker", 1, "1-3", needs_gpu=True
    ),
    "full-graph": Part(FULL_GRAPH, 1, needs_gpu=True, replayed=2),
    "full-graph-from-eager": Part(FULL_GRAPH, 1, "1-6", needs_gpu=True, replayed=2),
    "optimizer-graph": Part("--optimizer-cuda-graph", 1, needs_gpu=True),
    "moe": Part(EXPERTS),
    "moe-overlap": Part(
        f"{EXPERTS} --overlap-moe-expert-parallel-comm --no-gradient-accumulation-fusion",
        environment=QUEUES,
    ),
    "mtp": Part("--mtp-num-layers 1 --position-embedding-type rope --no-rope-fusion", 1),
    "tp2": Part("--tensor-model-parallel-size 2"),
    "pp2": Part("--pipeline-model-parallel-size 2"),
    "tp2-pp2": Part("--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2", 4),
    "pp2-interleaved": Part(
        "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1"
    ),
    "fsdp2": Part(
        f"{SHARDED} --use-torch-fsdp2 --ckpt-format torch_dist", environment=QUEUES
    ),
    "megatron-fsdp": Part(
        f"{SHARDED} --use-megatron-fsdp --use-distributed-optimizer "
        "--data-parallel-sharding-strategy optim_grads_params --ckpt-format fsdp_dtensor",
        environment=QUEUES, needs_gpu=True,
    ),
    "te-tp2": with_engine(TP2_SP),
    "te-tp2-fp8": with_engine(f"{TP2_SP} --fp8-format hybrid"),
    "te-tp2-overlap": with_engine(f"{TP2_SP} --tp-comm-overlap", UB_SKIPMC="1"),
    "te-cp2-p2p": with_engine(f"{CP2} p2p", **ANY_TWICE),
    "te-cp2-a2a": with_engine(f"{CP2} a2a", **ANY_TWICE),
    "te-cp2-all-gather": with_engine(f"{CP2} all_gather"),
    "te-cp4-hierarchical": with_engine(
        f"{CP4} --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 2", 4, **ANY_TWICE
    ),
    "te-offload": with_engine(f"{OFFLOADED} qkv_linear", 1, NVTE_CPU_OFFLOAD_V1="1"),
    "te-offload-attention": with_engine(
        f"{OFFLOADED} core_attn attn_proj", 1, NVTE_CPU_OFFLOAD_V1="1"
    ),
    "te-full-graph": replace(with_engine(FULL_GRAPH, 1), replayed=2),
    "te-full-graph-from-eager": replace(with_engine(FULL_GRAPH, 1), window="1-6", replayed=2),
    "te-moe-grouped": with_engine(f"{EXPERTS} --moe-grouped-gemm --disable-bias-linear"),
    "te-moe-delayed": with_engine(
        f"{EXPERTS} --moe-grouped-gemm --disable-bias-linear --overlap-moe-expert-parallel-comm "
        "--delay-wgrad-compute",
        **QUEUES,
    ),
    "te-graphs": with_engine("--cuda-graph-impl transformer_engine --te-rng-tracker", 1),
    "te-optimizer-graph": with_engine("--optimizer-cuda-graph", 1),
    "apex": with_apex("", 1),
    "apex-tp2": with_apex(TP2_SP),
    "apex-dp2": with_apex(OVERLAPS),
    "apex-optimizer-graph": with_apex("--optimizer-cuda-graph", 1),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, help="one folder a training goes here")
    parser.add_argument("--seconds", type=float, default=95, help="for everything")
    parser.add_argument("--port", type=int, default=29_900, help="the first of one for each")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), metavar="NAME")
    parser.add_argument("--cpu", action="store_true", help="no GPU, even if there is one")
    options = parser.parse_args()
    began = time.monotonic()
    have = 0 if options.cpu else visible_gpus()
    names = options.only or [
        name
        for name, part in PARTS.items()
        if (part.gpus <= have if have else not part.needs_gpu)
        and (not part.needs or find_spec(part.needs))
    ]
    result: dict[str, Any] = {}
    lock = threading.Lock()

    def follow(name: str, number: int) -> None:
        part = PARTS[name]
        plain, profiled = (
            _started(options.runs / f"{name}{kind}", part, 2 * number + bool(kind), have, options)
            for kind in ("", "-profiled")
        )
        ends = [one.end(began + options.seconds) for one in (plain, profiled)]
        try:
            faults, figures = judge(part, plain, profiled, ends)
        except Exception as error:
            faults, figures = [f"{type(error).__name__}: {error}"], []
        with lock:
            result[name] = {"faults": faults, "figures": figures}
            verdict = "FAIL" if faults else "pass"
            told = "; ".join([*faults, *figures])
            print(f"{time.monotonic() - began:.0f} s: {verdict} {name}: {told}", flush=True)
            path = options.runs / "megatron_features.json"
            path.write_text(json.dumps(result, indent=1) + "\n")

    threads = [
        threading.Thread(target=follow, args=(name, number)) for number, name in enumerate(names)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    print(f"{sum(not one['faults'] for one in result.values())} of {len(names)} pass")


def _started(
    folder: Path, part: Part, number: int, have: int, options: argparse.Namespace
) -> Training:
    gpus = list(range(part.gpus)) if have else [None] * part.gpus
    if part.gpus == 1 and have:
        gpus = [number % have]
    # In tensor, context and pipeline parallel no rank has data of its own.
    shared = any(one in part.flags for one in ("--tensor-", "--context-", "--pipeline-"))
    batch = MICROBATCHES * (1 if shared else part.gpus)
    ours = (
        f"--torch-profile --torch-profile-ranks all --torch-profile-iterations {part.window} "
        f"{SPANS} --torch-profile-partials never --torch-profile-dir {folder}"
    )
    training = Training(
        folder,
        f"--train-iters 9 --global-batch-size {batch} {part.flags} "
        f"{ours if folder.name.endswith('-profiled') else ''}",
        gpus, options.port + number, SMALL if have else TINY, environment=part.environment,
    )  # fmt: skip
    training.begin()
    return training


def judge(
    part: Part, plain: Training, profiled: Training, ends: list[str]
) -> tuple[list[str], list[str]]:
    """What is not as it should be, and figures."""
    faults, figures = [], []
    for training, ended in zip((plain, profiled), ends, strict=True):
        if ended != "trained":
            kind = "with a window" if training is profiled else "plain"
            return [f"{kind}: {ended}: {training.excerpt(500)}"], []
    same = losses_of(plain) == losses_of(profiled)
    (figures if same else faults).append("losses the same to the bit" if same else "other losses")
    traces = sorted(profiled.folder.rglob("*.pt.trace.json.gz"))
    if len(traces) != part.gpus:
        return [*faults, f"{len(traces)} of {part.gpus} traces"], figures
    for trace in traces:
        odd, told = _look_at(trace, part)
        faults += odd
        figures += told
    return faults, figures


def losses_of(training: Training) -> list[list[str]]:
    """Of each rank and iteration, as bits."""
    return [
        [loss for one in facts["iterations"] for loss in one.get("losses", [])]
        for facts in training.facts
    ]


def _look_at(trace: Path, part: Part) -> tuple[list[str], list[str]]:
    from megatron import torch_trace

    faults, figures = [], []
    (rank,) = torch_trace.analyze(trace).ranks
    name = f"rank {rank.rank}"
    steps = len(rank.steps) - part.replayed
    chunks = 2 if "virtual" in part.flags else 1
    seen = Counter(
        direction
        for row in rank.microbatches
        for direction in ("forward", "backward")
        if getattr(row, f"{direction}_ns") is not None
    )
    for direction in ("forward", "backward"):
        wanted = steps * MICROBATCHES * chunks
        if seen[direction] != wanted:
            faults.append(f"{name}: {seen[direction]} of {wanted} {direction} micro-batches")
    numbers = {row.number for row in rank.microbatches}
    if steps and numbers != set(range(MICROBATCHES)):
        faults.append(f"{name}: micro-batches are numbered {sorted(map(str, numbers))}")
    account = rank.module_account
    if account is None and steps:
        faults.append(f"{name}: no spans of modules")
    elif account is not None:
        inside = 1 - account.unattributed_ns / account.gpu_ns if account.gpu_ns else 0.0
        figures.append(f"{name}: {inside:.1%} of GPU work in modules")
    gpu_ns = sum(one.time_ns for one in rank.families)
    nameless = sum(one.time_ns for one in rank.families if one.family == "other")
    if gpu_ns:
        told = f"{name}: {nameless / gpu_ns:.1%} of GPU work without a family"
        (faults if nameless > MOST_WITHOUT_FAMILY * gpu_ns else figures).append(told)
    if rank.unknown:
        figures.append(f"{name}: {rank.unknown}")
    figures.append(f"{len(rank.modules)} modules, {trace.stat().st_size / 1e6:.2f} MB")
    return faults, figures


if __name__ == "__main__":
    main()
