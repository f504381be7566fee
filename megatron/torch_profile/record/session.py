# SPDX-License-Identifier: Apache-2.0
"""One call of Megatron's `train`: agree on a plan, follow the steps, close on every way out."""

from __future__ import annotations

import getpass
import importlib
import json
import os
import platform
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from importlib import metadata as packages
from pathlib import Path
from typing import Any

from megatron.torch_profile.followers import Idle, StepFollower, followers
from megatron.torch_profile.hooks import arguments, cuda_graphs
from megatron.torch_profile.log import Slug, exit_with, say, warn
from megatron.torch_profile.memory.rank_memory import RankMemory
from megatron.torch_profile.plan import capture_plan
from megatron.torch_profile.plan.capture_plan import CapturePlan
from megatron.torch_profile.plan.training_length import batch_grows
from megatron.torch_profile.plan.training_loop import MEGATRONS_OWN, TrainingLoop
from megatron.torch_profile.record import cupti, forewarnings
from megatron.torch_profile.record.recorder import Recorder
from megatron.torch_profile.spans.attention_mask import is_causal
from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.files.atomic import atomic_path
from megatron.torch_trace.format.file_names import ENDED_FILE, RUN_FILE
from megatron.torch_trace.version import __version__

_OURS = "megatron-torch-profile"
_PACKAGES = (
    _OURS,
    "megatron-core",
    "torch",
    "transformer-engine",
    "apex",
    "wandb",
    "tensorboard",
)
_ENVIRONMENT = ("SLURM_", "NCCL_", "CUDA_", "PYTORCH_", "TORCH_", "OMP_NUM_THREADS")


@contextmanager
def training(
    args: Any,
    model: Any,
    count_flops: Callable[[], int | None],
    optimizer: Any = None,
    loop: TrainingLoop = MEGATRONS_OWN,
) -> Iterator[None]:
    """Around one call of `train`: record what the flags in `args` ask for.

    Args:
        args: Megatron's arguments.
        model: Megatron's list of model chunks.
        count_flops: Megatron's own formula for the FLOPs of one iteration, None if unknown.
        optimizer: Megatron's, None where it cannot be had.
        loop: what is followed.
    """
    config = arguments.config_of(args)
    if not config.enabled:
        yield
        return
    followers.followed = True
    capture: CapturePlan | None = None
    try:
        # Flags from YAML or from a program have not passed the parser's check.
        capture_plan.check(config, args, loop)
        capture = capture_plan.agree(config, args, loop)
    except UsageError as error:
        exit_with(error)
    except Exception as error:
        # What all ranks do alike fails alike, and a peer that is gone ends training by itself.
        warn(
            Slug.NO_PROFILE,
            "training goes on without a profile: %s: %s",
            type(error).__name__,
            error,
        )
    if capture is None:
        yield
        return
    followers.plan = capture
    try:
        followers.steps = _begin(capture, args, model, count_flops, optimizer, loop)
    except Exception as error:
        # All that ranks do together is behind us, so this one may go its own way.
        warn(
            Slug.NO_PROFILE,
            "rank %d trains without a profile: %s: %s",
            capture.topology.rank,
            type(error).__name__,
            error,
        )
    failure: str | None = None
    try:
        yield
    except BaseException as error:
        if not isinstance(error, SystemExit):  # how Megatron ends, on all ranks alike
            failure = type(error).__name__
        raise
    finally:
        follower, followers.steps, followers.plan = followers.steps, Idle(), None
        follower.close(after_failure=failure is not None)
        if capture.topology.rank == 0:
            _write_end(capture, failure)
        memory, followers.memory = followers.memory, None
        if memory is not None:
            memory.close()


def _begin(
    capture: CapturePlan,
    args: Any,
    model: Any,
    count_flops: Callable[[], int | None],
    optimizer: Any,
    loop: TrainingLoop,
) -> StepFollower:
    """Say and write what will be captured, and make what follows the steps on this rank."""
    flops = count_flops()
    if capture.topology.rank == 0:
        say(Slug.PLAN, "%s", capture.describe())
        forewarnings.of_the_run(capture, args)
        _write_run_file(capture, args, flops, loop)
    if "modules" in capture.config.wanted_spans:
        forewarnings.of_module_spans(capture, model, loop)
    if not capture.records_here and not capture.config.trigger:
        return Idle()
    _prepare_cupti(args)
    metadata = _metadata(capture, args, flops, loop) | {"causal_attention": is_causal(model)}
    recorder = Recorder(capture, model, metadata)
    if capture.config.records_history or capture.config.on_oom:
        followers.memory = RankMemory(capture, args, model, optimizer)
        recorder.exporter.join(followers.memory)
    return recorder


def _prepare_cupti(args: Any) -> None:
    import torch

    graphs = cupti.uses_cuda_graphs(args)
    if graphs:
        cuda_graphs.expect()
    cupti.prepare(torch.version.cuda, cuda_graphs=graphs, given=os.environ)
    other = cupti.other_subscriber(os.environ)
    if other:
        warn(
            Slug.OTHER_GPU_PROFILER,
            "%s runs in this process too; only one profiler gets the GPU's events, so traces may "
            "hold no GPU work",
            other,
        )


def _metadata(
    capture: CapturePlan, args: Any, flops: int | None, loop: TrainingLoop
) -> dict[str, Any]:
    me = capture.topology.me
    return {
        "schema": 1,
        "run": capture.run_folder.name,
        "rank": me.rank,
        "world_size": capture.topology.layout.world_size,
        "coordinates": dict(me.coordinates),
        "layout": dict(capture.topology.layout.sizes),
        "host": me.host,
        "pid": me.pid,
        "device": me.device,
        "argv": sys.argv,
        "loop": loop.name,
        **({"flags": list(loop.flags)} if loop.flags else {}),
        "model_flops_per_iteration": flops,
        **({"tokens_per_iteration": loop.tokens} if loop.tokens else _tokens(args)),
        # At 1 and 2 Megatron's timers synchronise, and overlap is not what it was.
        "timing_log_level": getattr(args, "timing_log_level", None),
    }


def _tokens(args: Any) -> dict[str, int]:
    """Of an iteration over all ranks; nothing while the batch grows, or where it is not told."""
    batch, length = getattr(args, "global_batch_size", None), getattr(args, "seq_length", None)
    if batch_grows(args) or not isinstance(batch, int) or not isinstance(length, int):
        return {}
    return {"tokens_per_iteration": batch * length}


def _write_run_file(capture: CapturePlan, args: Any, flops: int | None, loop: TrainingLoop) -> None:
    arguments = vars(args) if loop.arguments is None else loop.arguments
    run = {
        "schema": 1,
        "run": capture.run_folder.name,
        **facts(),
        "loop": loop.name,
        "arguments": {name: jsonable(value) for name, value in sorted(arguments.items())},
        "world_size": capture.topology.layout.world_size,
        "layout": dict(capture.topology.layout.sizes),
        "ranks": [member.as_json() for member in capture.topology.members],
        "plan": capture.as_json(),
        "model_flops_per_iteration": flops,
    }
    _write(capture.run_folder / RUN_FILE, run)


def _write_end(capture: CapturePlan, failure: str | None) -> None:
    # A fork that leaves the loop of its parent ends nothing.
    if os.getpid() == capture.topology.me.pid:
        ended = datetime.now().astimezone().isoformat(timespec="seconds")
        _write(capture.run_folder / ENDED_FILE, {"schema": 1, "ended": ended, "error": failure})


def _write(path: Path, content: dict[str, Any]) -> None:
    try:
        with atomic_path(path) as unfinished:
            unfinished.write_text(json.dumps(content, indent=1) + "\n")
    except (OSError, TypeError, ValueError) as error:
        warn(Slug.RUN_RECORD_FAILED, "%s was not written: %s", path, error)


def facts() -> dict[str, Any]:
    """What `run.json` says of the process whatever it runs: when, who, where, which versions."""
    import torch

    return {
        "created": datetime.now().astimezone().isoformat(timespec="seconds"),
        "user": _user(),
        "host": socket.gethostname(),
        "argv": sys.argv,
        "versions": {
            "python": platform.python_version(),
            "cuda": torch.version.cuda,
            "nccl": _nccl_version(),
            **{name: _version(name) for name in _PACKAGES},
            "megatron-core": _megatron_version(),
        },
        "environment": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(_ENVIRONMENT)
        },
    }


def jsonable(value: Any) -> Any:
    """A value of an argument as JSON can hold it."""
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    # NaN and infinity have no JSON.
    if isinstance(value, (bool, int, str, type(None))) or (
        isinstance(value, float) and abs(value) < float("inf")
    ):
        return value
    return str(value)


def _version(package: str) -> str | None:
    if package == _OURS:  # a checkout on the PYTHONPATH has no metadata
        return __version__
    try:
        return packages.version(package)
    except packages.PackageNotFoundError:
        return None


def _megatron_version() -> str | None:
    # A checkout's version, which no installed package tells; whoever trains has it imported.
    core = sys.modules.get("megatron.core")
    if core is None:
        return _version("megatron-core")
    try:
        # The package tells it itself from core 0.8 on.
        told = getattr(core, "__version__", None)
        return str(told or importlib.import_module("megatron.core.package_info").__version__)
    except (ImportError, AttributeError):
        return None


def _nccl_version() -> str | None:
    import torch

    try:
        return ".".join(map(str, torch.cuda.nccl.version()))
    except (AttributeError, RuntimeError, ImportError):
        return None


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container without an entry for its user
        return None
