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
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from megatron.torch_profile.log import environment_rank, logger
from megatron.torch_profile.patches import Patch, PatchSet

_active = False
_said: list[str] = []

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
}
"""What a CPU needs Megatron's arguments to be. Only those that the version at hand has are set."""


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
        logger.info("%s: training on the CPU over gloo", reason)
    # Kineto's only complaint would be that there is no GPU.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    patches = PatchSet(PATCHES)
    with contextlib.ExitStack() as undo:
        # Its table of torch's functions, where made inside, holds stand-ins.
        undo.callback(torch._dynamo.trace_rules.clear_lru_cache)
        for owner, name, stand_in in _stand_ins(torch):
            undo.enter_context(_replaced(owner, name, stand_in))
        patches.apply()
        undo.callback(patches.remove)
        undo.enter_context(_device_mode(torch))
        # Megatron's small fusions take minutes to compile and gain nothing here.
        undo.enter_context(torch._dynamo.config.patch(disable=True))
        undo.enter_context(_quiet())
        _active = True
        try:
            yield
        finally:
            _active = False


def adjust_arguments(args: Any) -> None:
    """Set parsed arguments to what a CPU can do, and say which ones that changed."""
    changed: list[str] = []
    for name, value in ARGUMENTS.items():
        if not hasattr(args, name):
            continue
        old = getattr(args, name)
        if name == "attention_backend" and not isinstance(old, str):
            value = type(old)[value]  # an enum from core 0.9 on
        if old != value:
            setattr(args, name, value)
            changed.append(f"{name} {getattr(value, 'name', value)}")
    # Megatron parses more than once.
    if changed and changed != _said and environment_rank() == 0:
        _said[:] = changed
        logger.info("on the CPU: %s", ", ".join(changed))


def _no_cuda_needed(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    return wrapped(*args, **{**kwargs, "allow_no_cuda": True})


def _nothing(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> None:
    return None


def _compile_if_missing(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    # A wheel brings its dataset helpers compiled, and no Makefile to compile them with.
    try:
        import megatron.core.datasets.helpers  # noqa: F401 - compiled itself before core 0.9
    except ImportError:
        return wrapped(*args, **kwargs)
    return None


def _get_rng_state(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    import torch

    return torch.get_rng_state()


def _set_rng_state(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> None:
    import torch

    torch.set_rng_state(args[0] if args else kwargs["new_state"])


COMPILED_HELPERS = Patch(
    "megatron.core.datasets.utils", "compile_helpers", _compile_if_missing, since=(0, 7)
)

PATCHES = (
    Patch("megatron.training.training", "initialize_megatron", _no_cuda_needed),
    # Compiles fused kernels by running them on a GPU.
    Patch("megatron.training.training", "set_jit_fusion_options", _nothing),
    COMPILED_HELPERS,
    Patch("megatron.core.tensor_parallel.random", "_get_cuda_rng_state", _get_rng_state, (0, 9)),
    Patch("megatron.core.tensor_parallel.random", "_set_cuda_rng_state", _set_rng_state),
)


class _NoStream:
    """A stream or event that has nothing to order."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.cuda_stream = 0

    def __enter__(self) -> _NoStream:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return _do_nothing


class _NoEvent(_NoStream):
    """An event that has happened, at no particular time."""

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: _NoEvent) -> float:
        return 0.0


def _do_nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _stand_ins(torch: Any) -> Iterator[tuple[Any, str, Any]]:
    """Owner, name, stand-in. Each its own object: torch.compile knows functions by identity."""
    cuda, distributed, seed = torch.cuda, torch.distributed, torch.default_generator.manual_seed
    yield cuda, "device_count", lambda: 1
    yield cuda, "current_device", lambda: 0
    # Of the newest kind, of which Megatron asks no CUDA_DEVICE_MAX_CONNECTIONS.
    yield cuda, "get_device_capability", lambda *_: (10, 0)
    properties = SimpleNamespace(name="cpu", major=10, minor=0, total_memory=_host_memory())
    yield cuda, "get_device_properties", lambda *_: properties
    for name in ("set_device", "synchronize", "reset_peak_memory_stats", "set_stream"):
        yield cuda, name, lambda *_, **__: None
    yield cuda, "Stream", _NoStream
    yield cuda, "Event", _NoEvent
    for name in ("current_stream", "default_stream", "stream"):
        yield cuda, name, lambda *_, **__: _NoStream()
    for module in (cuda, cuda.random):
        yield module, "get_rng_state", lambda *_, **__: torch.get_rng_state()
        yield module, "set_rng_state", lambda state, *_, **__: torch.set_rng_state(state)
        yield module, "manual_seed", lambda number: seed(number)
        yield module, "manual_seed_all", lambda number: seed(number)
    for name in ("Float", "Double", "Half", "BFloat16", "Int", "Long", "Byte", "Bool"):
        yield cuda, f"{name}Tensor", getattr(torch, f"{name}Tensor")
    for name in ("init_process_group", "new_group"):
        yield distributed, name, _over_gloo(getattr(distributed, name))


def _host_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _over_gloo(create: Callable[..., Any]) -> Callable[..., Any]:
    def created(*args: Any, **kwargs: Any) -> Any:
        for name in ("device_id", "pg_options"):
            kwargs.pop(name, None)
        if kwargs.get("backend") not in (None, "fake"):
            kwargs["backend"] = "gloo"
        return create(*args, **kwargs)

    return created


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    # There is one generator here, so forking the "GPU" one always moves the CPU's: no warning.
    log = logging.getLogger("megatron.core.tensor_parallel.random")

    def wanted(record: logging.LogRecord) -> bool:
        return "CPU RNG state changed" not in record.getMessage()

    log.addFilter(wanted)
    try:
        yield
    finally:
        log.removeFilter(wanted)


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    missing = object()
    original = owner.__dict__.get(name, missing)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if original is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, original)


def _device_mode(torch: Any) -> Any:
    """A torch function mode in which every CUDA device is the CPU."""
    from torch.overrides import TorchFunctionMode

    def on_cpu(device: Any) -> Any:
        # A bare number is a CUDA device too; bool is no device.
        if isinstance(device, int) and not isinstance(device, bool):
            return "cpu"
        if isinstance(device, str):
            return "cpu" if device.startswith("cuda") else device
        if isinstance(device, torch.device):
            return torch.device("cpu") if device.type == "cuda" else device
        return device

    tensor = torch.Tensor

    class CudaIsCpu(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            if func is tensor.cuda or func is tensor.pin_memory:
                return args[0]
            if func is tensor.record_stream:
                return None
            if func is tensor.to and len(args) > 1:
                args = (args[0], on_cpu(args[1]), *args[2:])
            if "device" in kwargs:
                kwargs["device"] = on_cpu(kwargs["device"])
            if "pin_memory" in kwargs:
                kwargs["pin_memory"] = False
            result = func(*args, **kwargs)
            if func is tensor.type and len(args) == 1 and not kwargs:
                # Megatron's optimizers know parameters by the name of their type.
                return result.replace("torch.", "torch.cuda.", 1)
            return result

    return CudaIsCpu()
