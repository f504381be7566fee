# SPDX-License-Identifier: Apache-2.0
"""What stands in for a GPU in torch while Megatron trains on the CPU."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any


class _NoStream:
    """A stream or event that has nothing to order."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.cuda_stream = 0

    def __enter__(self) -> _NoStream:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def record_event(self, event: Any = None) -> Any:
        return event or _NoEvent()

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


def stand_ins(torch: Any) -> Iterator[tuple[Any, str, Any]]:
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
    # Its argument must be torch's own stream, before any mode is asked.
    yield torch.Tensor, "record_stream", lambda *_: None
    for module in (cuda, cuda.random):
        yield module, "get_rng_state", lambda *_, **__: torch.get_rng_state()
        yield module, "set_rng_state", lambda state, *_, **__: torch.set_rng_state(state)
        yield module, "manual_seed", lambda number: seed(number)
        yield module, "manual_seed_all", lambda number: seed(number)
    for name in ("Float", "Double", "Half", "BFloat16", "Int", "Long", "Byte", "Bool"):
        yield cuda, f"{name}Tensor", getattr(torch, f"{name}Tensor")
    for name in ("init_process_group", "new_group"):
        yield distributed, name, _over_gloo(getattr(distributed, name))
    mesh: Any = getattr(getattr(distributed, "device_mesh", None), "DeviceMesh", None)
    if hasattr(mesh, "from_group"):  # torch 2.3 has none
        # FSDP2 takes its device from the mesh, as the mesh names it.
        yield mesh, "from_group", staticmethod(_mesh_of_cpus(mesh.from_group))
    isend = _own_tensor(distributed.isend)
    for module in (distributed, distributed.distributed_c10d):
        yield module, "isend", isend


def _host_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _over_gloo(create: Callable[..., Any]) -> Callable[..., Any]:
    parameters = inspect.signature(create).parameters.values()
    names = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]

    def created(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        for name in ("device_id", "pg_options"):
            given.pop(name, None)
        if given.get("backend") not in (None, "fake"):
            given["backend"] = "gloo"
        # What stands in torch's place already may name no parameter.
        return create(*args[len(names) :], **given)

    return created


def _mesh_of_cpus(create: Callable[..., Any]) -> Callable[..., Any]:
    def created(group: Any, device_type: str, *args: Any, **kwargs: Any) -> Any:
        return create(group, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    return created


def _own_tensor(send: Callable[..., Any]) -> Callable[..., Any]:
    # Interleaved schedules free what they send at once, which gloo may still read.
    def sent(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return send(tensor.detach(), *args, **kwargs)

    return sent


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """While open, `owner` has `value` under `name`; then what it had, or nothing."""
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


def cuda_is_cpu(torch: Any) -> Any:
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
