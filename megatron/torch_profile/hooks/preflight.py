# SPDX-License-Identifier: Apache-2.0
"""`python -m megatron.torch_profile --plan`: the plan of a launch, before anything is queued.

It needs no GPU, no torch and no Megatron: besides our own flags it reads those of Megatron's that a
plan depends on, with Megatron's defaults. What it says and refuses is what the launch will.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import islice
from typing import Any, NoReturn

from megatron.torch_profile.config import FLAG, TorchProfileConfig, flag_of
from megatron.torch_profile.hooks.command_line import of_command_line, with_suggestion
from megatron.torch_profile.log import Slug, say
from megatron.torch_profile.plan import capture_plan, ranks, run_folder, topology, training_length
from megatron.torch_profile.plan.capture_plan import CapturePlan
from megatron.torch_profile.plan.topology import Member, Topology
from megatron.torch_profile.plan.trace_size import estimate
from megatron.torch_trace import wording
from megatron.torch_trace.errors import UsageError

_NUMBERS = {
    "train-iters": None,
    "train-samples": None,
    "exit-interval": None,
    "num-layers": None,
    "seq-length": None,
    "micro-batch-size": 1,
    "global-batch-size": None,
    "tensor-model-parallel-size": 1,
    "pipeline-model-parallel-size": 1,
    "context-parallel-size": 1,
    "expert-model-parallel-size": 1,
    "expert-tensor-parallel-size": None,
}
_WORDS = ("tensorboard-dir", "load", "yaml-cfg", "step-batch-size-schedule")
_SWITCHES = ("profile", "use-tp-pp-dp-mapping")
_RANKS_PER_NODE = 8


def show(words: Sequence[str], world_size: int | None = None) -> None:
    """Log the plan of a launch.

    Args:
        words: the launch's command line from the script on.
        world_size: number of ranks; else WORLD_SIZE, else the fewest that the flags allow.

    Raises:
        UsageError: what would end the launch itself.
    """
    args = _megatron_arguments(words)
    config = of_command_line(words).with_preset()
    if not config.enabled:
        raise UsageError(f"--plan: there is no {FLAG} among the flags, so nothing is recorded.")
    told = world_size or _number(os.environ.get("WORLD_SIZE"))
    _complete(args, told)
    capture_plan.check(config, args)
    members = tuple(_members(args))
    layout = topology.layout_from_arguments(args)
    windows = capture_plan.schedule_of(config, args)
    first = next(iter(windows), None)
    plan = CapturePlan(
        config,
        Topology(0, layout, members),
        ranks.resolve(config.ranks, layout, members),
        windows,
        run_folder.root_of(config, args) / "YYYYMMDD-HHMMSS",
        expected=estimate(config, args, first.last - first.first + 1 if first else 0),
    )
    further = _further(plan, args, guessed=told is None)
    say(Slug.PLAN, "%s", "\n".join([plan.describe(), *further]))


class _Parser(argparse.ArgumentParser):
    """Knows a few of Megatron's flags only, so its usage would mislead."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"--plan: {message.removeprefix('argument ')}; Megatron would refuse it.")


def _megatron_arguments(words: Sequence[str]) -> Any:
    parser = _Parser(allow_abbrev=False, add_help=False)
    for name, default in _NUMBERS.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    for name in _WORDS:
        parser.add_argument(f"--{name}")
    parser.add_argument("--rampup-batch-size", type=int, nargs=3)
    for name in _SWITCHES:
        parser.add_argument(f"--{name}", action="store_true")
    return parser.parse_known_args(_of_megatron(words))[0]


def _of_megatron(words: Sequence[str]) -> list[str]:
    """The words without unknown flags of ours, which end the launch."""
    known = {flag_of(field.name) for field in fields(TorchProfileConfig)}
    for word in words:
        flag = word.partition("=")[0]
        if flag.startswith(FLAG) and flag not in known:
            raise UsageError(with_suggestion(f"unrecognized arguments: {flag}"))
    return list(words)


def _complete(args: Any, world_size: int | None) -> None:
    """What Megatron adds to its arguments when it validates them."""
    tp, pp = args.tensor_model_parallel_size, args.pipeline_model_parallel_size
    model = tp * pp * args.context_parallel_size
    args.expert_tensor_parallel_size = args.expert_tensor_parallel_size or tp
    expert = args.expert_model_parallel_size * args.expert_tensor_parallel_size
    fewest = next(n for n in range(model, model * expert + 1, model) if n // pp % expert == 0)
    args.world_size = world_size or fewest
    if args.world_size % fewest:
        raise UsageError(
            f"--plan {args.world_size}: the number of ranks must be a multiple of {fewest}, which "
            "is what the parallel sizes among the flags need."
        )
    os.environ["WORLD_SIZE"] = str(args.world_size)
    args.data_parallel_size = args.world_size // model
    args.global_batch_size = (
        args.global_batch_size or args.micro_batch_size * args.data_parallel_size
    )
    if args.train_iters is None and args.train_samples:
        args.train_iters = _iterations(args)
    if args.train_iters is None:
        raise UsageError(
            "--plan: neither --train-iters nor --train-samples is among the flags, so the "
            "iterations are not known; add the one that the launch has."
        )


def _iterations(args: Any) -> int:
    samples, batch = args.train_samples, args.global_batch_size
    if args.step_batch_size_schedule:
        return training_length.of_steps(
            samples, args.step_batch_size_schedule, args.seq_length or 1
        )
    if args.rampup_batch_size:
        return training_length.of_ramp(samples, batch, args.rampup_batch_size)
    return training_length.of_samples(samples, batch)


def _members(args: Any) -> Iterator[Member]:
    """Every rank where Megatron will put it, on nodes of eight unless the environment says."""
    tp, cp = args.tensor_model_parallel_size, args.context_parallel_size
    pp, dp = args.pipeline_model_parallel_size, args.data_parallel_size
    for rank in range(args.world_size):
        outer = rank // (tp * cp)
        stage, replica = divmod(outer, dp)
        if args.use_tp_pp_dp_mapping:
            replica, stage = divmod(outer, pp)
        expert = rank // args.expert_tensor_parallel_size % args.expert_model_parallel_size
        yield Member(
            rank=rank,
            host=f"node {rank // _ranks_per_node()}",
            pid=0,
            local_rank=rank % _ranks_per_node(),
            device="GPU",
            coordinates={
                "tp": rank % tp,
                "cp": rank // tp % cp,
                "pp": stage,
                "dp": replica,
                "ep": expert,
            },
        )


def _ranks_per_node() -> int:
    given = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("SLURM_NTASKS_PER_NODE")
    return _number(given) or _RANKS_PER_NODE


def _number(given: str | None) -> int | None:
    return int(given) if given and given.isdigit() and int(given) else None


def _further(plan: CapturePlan, args: Any, *, guessed: bool) -> Iterator[str]:
    if plan.expected and plan.config.repeat:
        windows = len(list(islice(plan.schedule, 1000)))
        traces = windows * len(plan.ranks)
        yield (
            f"in all: {wording.counted(traces, 'trace')}, about "
            f"{wording.megabytes(traces * plan.expected.raw_mb)} raw"
        )
    if guessed:
        yield (
            f"number of ranks: {args.world_size}, the fewest that the flags allow; "
            "--plan N plans for N"
        )
    if "per-node" in plan.config.ranks:
        yield f"nodes: {_ranks_per_node()} ranks on each"
    if args.load and not plan.config.iterations:
        yield "cycles begin at the iteration after the one that --load resumes from"
    yield "nothing was started, and Megatron's own flags were not checked"
