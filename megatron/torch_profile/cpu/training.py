# SPDX-License-Identifier: Apache-2.0
"""Run Megatron's own training loop without a GPU, over gloo: for laptops, tests and dry runs.

Nothing of Megatron is replaced: it sees stand-ins for the few things of torch.cuda that it calls,
device "cuda" means the CPU, and a handful of its names that insist on a GPU are wrapped. All of it
holds inside `training()` only and is undone on the way out.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from megatron.torch_profile.cpu import device as cpu_device
from megatron.torch_profile.cpu import megatron_names
from megatron.torch_profile.log import Slug, environment_rank, exit_with, say
from megatron.torch_profile.patching import PatchSet
from megatron.torch_trace.errors import UsageError

_active = False
_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
_said: list[str] = []
_ignored: list[str] = []

ARGUMENTS: dict[str, Any] = {
    "distributed_backend": "gloo",
    "use_cpu_initialization": True,
    "transformer_impl": "local",
    "no_persist_layer_norm": True,
    "gradient_accumulation_fusion": False,
    "masked_softmax_fusion": False,
    "bias_gelu_fusion": False,
    "bias_swiglu_fusion": False,
    "bias_dropout_fusion": False,
    "apply_rope_fusion": False,
    "cross_entropy_loss_fusion": False,
    "attention_backend": "unfused",
    "use_flash_attn": False,
    "tp_comm_overlap": False,
    "async_tensor_model_parallel_allreduce": False,
    # torch's norms know neither; with experts and tensor parallelism Megatron insists on the first.
    "sequence_parallel": False,
    "apply_layernorm_1p": False,
    "layernorm_zero_centered_gamma": False,  # its name from core 0.17 on
    # What Transformer Engine alone can do.
    "fp8": None,
    "fp8_param_gather": False,
    "fp4": None,
    "cross_entropy_fusion_impl": "native",
    "te_rng_tracker": False,
    "use_te_rng_tracker": False,
    "delay_wgrad_compute": False,
    "use_transformer_engine_op_fuser": False,
    # What asks the GPU itself.
    "cuda_graph_impl": "none",
    "enable_cuda_graph": False,
    "external_cuda_graph": False,
    "log_memory_to_tensorboard": False,
    "log_device_memory_used": False,
    "log_energy": False,
    "record_memory_history": False,
    "gpu_sniff_test_interval": None,
    "async_save": False,  # its worker dies without a GPU, and training waits for the worker
}
"""What a CPU needs Megatron's arguments to be. Only those that the version at hand has are set."""

EXPERT_ARGUMENTS: dict[str, Any] = {
    "moe_enable_deepep": False,
    "moe_grouped_gemm": False,
    "moe_permute_fusion": False,
    "moe_router_fusion": False,
    "moe_shared_expert_overlap": False,
}
"""The same for a mixture of experts."""

_CPU_DISPATCHERS = ("allgather", "alltoall")
_OTHER_DISPATCHERS: dict[str, Any] = {
    "moe_token_dispatcher_type": "allgather",
    "overlap_moe_expert_parallel_comm": False,
}

IGNORED = "NVTE_"
"""Environment variables of Transformer Engine, which contradict the attention that a CPU has."""


def alone(environment: Mapping[str, str]) -> dict[str, str]:
    """What torchrun would set for one process; nothing if a launcher has told the rank."""
    if "RANK" in environment:
        return {}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    one = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return one | {name: value for name, value in master.items() if name not in environment}


def active() -> bool:
    """Whether Megatron runs on the CPU now."""
    return _active


@contextlib.contextmanager
def training(reason: str = "--cpu") -> Iterator[None]:
    """While open, Megatron trains on the CPU; entered again, it does nothing.

    Args:
        reason: why, for the one line in the log.
    """
    global _active
    if _active:
        yield
        return
    import torch
    import torch._dynamo

    if environment_rank() == 0:
        say(Slug.CPU, "%s: training on the CPU over gloo", reason)
    patches = PatchSet(megatron_names.PATCHES)
    with contextlib.ExitStack() as undo:
        # Its table of torch's functions, where made inside, holds stand-ins.
        undo.callback(torch._dynamo.trace_rules.clear_lru_cache)
        for owner, name, stand_in in cpu_device.stand_ins(torch):
            undo.enter_context(cpu_device.replaced(owner, name, stand_in))
        patches.apply()
        undo.callback(patches.remove)
        undo.enter_context(cpu_device.cuda_is_cpu(torch))
        # Megatron's small fusions take minutes to compile and gain nothing here.
        undo.enter_context(torch._dynamo.config.patch(disable=True))
        undo.enter_context(megatron_names.local_where_no_engine())
        undo.enter_context(_quiet_random())
        undo.enter_context(_quiet_kineto())
        undo.enter_context(_ignored_environment())
        _active = True
        try:
            yield
        finally:
            _active = False


def adjust_arguments(args: Any) -> None:
    """Set parsed arguments to what a CPU can do, and say which ones that changed."""
    _refuse_what_no_cpu_can(args)
    if _active and _splits_tensors(args) and not getattr(args, "use_torch_fsdp2", False):
        # Before core 0.14 Megatron insists on it whatever the device; undone with the rest.
        os.environ.setdefault(_CONNECTIONS, "1")
    experts = EXPERT_ARGUMENTS if getattr(args, "num_experts", None) else {}
    if experts and getattr(args, "moe_token_dispatcher_type", None) not in _CPU_DISPATCHERS:
        # Without its dispatcher a step has no pieces that could overlap.
        experts = experts | _OTHER_DISPATCHERS
    kept = {"sequence_parallel"} if experts and _splits_tensors(args) else set()
    changed: list[str] = []
    for name, value in (ARGUMENTS | experts).items():
        if not hasattr(args, name) or name in kept:
            continue
        old = getattr(args, name)
        if name == "attention_backend" and not isinstance(old, str):
            value = type(old)[value]  # an enum from core 0.9 on
            if old == getattr(type(old), "local", None):
                continue  # BERT's layers insist on it, and so do we
        if old != value and (old or value):
            setattr(args, name, value)
            changed.append(f"{name} {getattr(value, 'name', value)}")
    changed += [f"without {name}" for name in _ignored]
    # Megatron parses more than once: what it trains with is what the first parse says.
    if changed and not _said and environment_rank() == 0:
        _said[:] = changed
        say(Slug.CPU_FLAGS, "on the CPU: %s", ", ".join(changed))


def _splits_tensors(args: Any) -> bool:
    """Whether Megatron insists on sequence parallelism where there are experts."""
    return (getattr(args, "tensor_model_parallel_size", None) or 1) > 1


def _refuse_what_no_cpu_can(args: Any) -> None:
    size = getattr(args, "context_parallel_size", None) or 1
    if size > 1 and not megatron_names.attention_splits_sequences():
        exit_with(
            UsageError(
                f"--context-parallel-size {size}: this Megatron's attention needs Transformer "
                "Engine for it, and there is none on the CPU; leave the flag out with --cpu."
            )
        )


@contextlib.contextmanager
def _quiet_kineto() -> Iterator[None]:
    # Its only complaint would be that there is no GPU.
    before = os.environ.get("KINETO_LOG_LEVEL")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("KINETO_LOG_LEVEL", None)


@contextlib.contextmanager
def _ignored_environment() -> Iterator[None]:
    taken = {name: os.environ.pop(name) for name in sorted(os.environ) if name.startswith(IGNORED)}
    _ignored[:] = taken
    connections = os.environ.get(_CONNECTIONS)
    try:
        yield
    finally:
        os.environ.update(taken)
        if connections is None:
            os.environ.pop(_CONNECTIONS, None)
        _ignored.clear()


@contextlib.contextmanager
def _quiet_random() -> Iterator[None]:
    # There is one generator here, so forking the "GPU" one always moves the CPU's: no warning.
    log = logging.getLogger("megatron.core.tensor_parallel.random")

    def wanted(record: logging.LogRecord) -> bool:
        return "CPU RNG state changed" not in record.getMessage()

    log.addFilter(wanted)
    try:
        yield
    finally:
        log.removeFilter(wanted)
