# SPDX-License-Identifier: Apache-2.0
"""Whose memory it is: the storages of Megatron's own objects, by address.

The allocator knows who called it, from the moment on that a history is kept. Parameters, gradients
and optimizer state are older than that. Here the objects are asked that hold them: the model's
parameters, the flat buffers of Megatron's DDP, shards of FSDP, and whatever tensors an optimizer
keeps. Nothing is copied, and the GPU is not asked. Of a loop with several models each owner has the
name of its model.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from megatron.torch_profile.memory.standing import WRAPPERS
from megatron.torch_profile.plan.training_loop import NamedChunk, named_chunks
from megatron.torch_profile.spans.optimizer_owners import owner_of, owners
from megatron.torch_trace.allocator.purpose.owners import GLOBAL_BUFFER, Owner

PARAMETERS = "parameters"
GRADIENTS = "gradients"
OPTIMIZER_STATE = "optimizer_state"
COMMUNICATION = "communication_buffers"
"""Categories, by the names that `torch-trace memory` has for them."""

_BUFFERS = ("buffers", "expert_parallel_buffers")
"""Of Megatron's DDP: lists of flat buffers with `param_data` and `grad_data`."""
_DDP_BUFFERS = (
    ("grad_data", GRADIENTS, "gradient buffer of DDP"),
    ("param_data", PARAMETERS, "parameter buffer of DDP"),
)
_GATHERED = "what FSDP gathers into"
_FSDP_BUFFERS = (
    ("model_weight_buffer", PARAMETERS, "parameters of Megatron-FSDP"),
    ("main_grad_buffer", GRADIENTS, "gradients of Megatron-FSDP"),
    ("main_weight_buffer", OPTIMIZER_STATE, "main parameters of Megatron-FSDP"),
    ("transpose_weight_buffer", PARAMETERS, "transposed parameters of Megatron-FSDP"),
    ("hfsdp_helper_wbuf", COMMUNICATION, _GATHERED),
    ("hfsdp_helper_wtbuf", COMMUNICATION, _GATHERED),
    ("hfsdp_helper_gbuf", COMMUNICATION, _GATHERED),
    ("hsdp_comm_gbuf", COMMUNICATION, _GATHERED),
)
"""Of each parameter group of Megatron-FSDP."""
_GLOBAL_BUFFERS = ("_GLOBAL_MEMORY_BUFFER", "_GLOBAL_SYMMETRIC_MEMORY_BUFFER")
_MOST_OBJECTS = 1_000_000
"""That are looked at in an optimizer; more is no optimizer."""


def weight_bytes(model: Any) -> tuple[int, ...]:
    """Sizes of the weight matrices, as their gradients have them before they are sharded.

    Args:
        model: Megatron's list of model chunks, or one; None where it cannot be had.
    """
    return tuple(
        sorted(
            {
                one.numel() * one.element_size()
                for chunk in _modules(model)
                for one in chunk.parameters()
                if one.requires_grad and one.dim() > 1
            }
        )
    )


def owned_ranges(model: Any, optimizer: Any, *, device: str = "cuda") -> list[Owner]:
    """The storages of a model and its optimizer, by address; each once, with its first owner.

    Args:
        model: `Models`, a list of model chunks, or one; None where it cannot be had.
        optimizer: Megatron's optimizer, or several; or None.
        device: type of the devices that are asked about.
    """
    found = _Found(device)
    chunks = [one for one in named_chunks(model) if isinstance(one.chunk, torch.nn.Module)]
    for one in chunks:
        _flat_buffers(one, found)
    for one in chunks:
        _parameters(one, found)
    _optimizers(optimizer, chunks, found)
    for one in chunks:
        _sharded_modules(one, found)
    _global_buffers(found)
    return sorted(found.ranges.values(), key=lambda one: (one.device, one.address))


class _Found:
    def __init__(self, device: str) -> None:
        self.ranges: dict[tuple[int, int], Owner] = {}
        self._device = device

    def add(self, value: Any, category: str, name: str) -> None:
        """The storages of a tensor, unless somebody owns them."""
        for one in _plain_tensors(value):
            with suppress(Exception):  # one without storage: fake, sparse, of a backend to come
                if one.device.type != self._device:
                    continue
                storage = one.untyped_storage()
                key = (one.device.index or 0, storage.data_ptr())
                if key[1] and storage.nbytes():
                    self.ranges.setdefault(key, Owner(*key, storage.nbytes(), category, name))

    def look_at(self, of: str, tensor: Any) -> None:
        """The gradient of one that an optimizer keeps: a main parameter's."""
        if tensor.is_leaf and tensor.grad is not None:
            self.add(tensor.grad, GRADIENTS, f"gradients of main parameters{of}")


def _of(model: str | None) -> str:
    """What follows a name that each of several models has."""
    return f" of {model}" if model else ""


def _flat_buffers(one: NamedChunk, found: _Found) -> None:
    of = _of(one.model)
    for module in one.chunk.modules():
        for attribute in _BUFFERS:
            for buffer in _listed(vars(module).get(attribute)):
                for data, category, name in _DDP_BUFFERS:
                    found.add(getattr(buffer, data, None), category, f"{name}{of}")
        fsdp = vars(module).get("param_and_grad_buffer")
        for group in _listed(getattr(fsdp, "parameter_groups", None)):
            for attribute, category, name in _FSDP_BUFFERS:
                held = getattr(getattr(group, attribute, None), "data", None)
                found.add(held, category, f"{name}{of}")


def _parameters(one: NamedChunk, found: _Found) -> None:
    for path, parameter in one.chunk.named_parameters():
        name = one.prefix + WRAPPERS.sub("", path)
        found.add(getattr(parameter, "main_grad", None), GRADIENTS, f"gradient of {name}")
        if parameter.is_leaf:
            found.add(parameter.grad, GRADIENTS, f"gradient of {name}")
        found.add(parameter, PARAMETERS, name)
    for path, buffer in one.chunk.named_buffers():
        found.add(buffer, PARAMETERS, one.prefix + WRAPPERS.sub("", path))


def _optimizers(optimizer: Any, chunks: Sequence[NamedChunk], found: _Found) -> None:
    models: dict[str | None, list[torch.nn.Module]] = defaultdict(list)
    for one in chunks:
        models[one.model].append(one.chunk)
    trained = owners(models)
    for each in _listed(optimizer):
        of = ""
        with suppress(Exception):  # an optimizer may be anything
            of = _of(owner_of(each, trained))
        for tensor in _tensors_in(each, partial(found.look_at, of)):
            found.add(tensor, OPTIMIZER_STATE, f"optimizer state{of}")


def _sharded_modules(one: NamedChunk, found: _Found) -> None:
    """What FSDP gathers into, now that shards have their owners."""
    for module in one.chunk.modules():
        with suppress(Exception):
            groups = [vars(module).get("param_and_grad_buffer")]
            if hasattr(module, "_get_fsdp_state"):  # FSDP2
                state = module._get_fsdp_state()
                # Several groups of one module from torch 2.12 on.
                groups += vars(state).get("_fsdp_param_groups") or [state._fsdp_param_group]
            for group in groups:
                for tensor in _tensors_in(group, lambda tensor: None):
                    found.add(tensor, COMMUNICATION, f"{_GATHERED}{_of(one.model)}")


def _global_buffers(found: _Found) -> None:
    state = sys.modules.get("megatron.core.parallel_state")
    for name in _GLOBAL_BUFFERS:
        for one in _tensors_in(getattr(state, name, None), lambda tensor: None):
            found.add(one, COMMUNICATION, GLOBAL_BUFFER)


def _tensors_in(root: Any, on_tensor: Any) -> Iterator[torch.Tensor]:
    """Tensors that an object holds, however deep: lists, dictionaries, attributes; no modules."""
    seen: set[int] = set()
    stack = [root]
    while stack and len(seen) < _MOST_OBJECTS:
        value = stack.pop()
        if value is None or isinstance(value, _ATOMS) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            with suppress(Exception):
                on_tensor(value)
            yield value
        elif isinstance(value, dict):
            stack += [*value.values(), *(k for k in value if isinstance(k, torch.Tensor))]
        elif isinstance(value, (list, tuple, set, frozenset)):
            stack += value
        elif isinstance(value, _OTHERS) or callable(value):
            continue
        else:
            stack += getattr(value, "__dict__", {}).values()


_ATOMS = (bool, int, float, complex, str, bytes, type, torch.dtype, torch.device)
_OTHERS = (torch.nn.Module, type(sys))
"""Modules hold parameters, which have their owners already."""


def _plain_tensors(value: Any) -> Iterable[torch.Tensor]:
    """The tensors with storage that a tensor is made of: DTensor, quantised weights."""
    if not isinstance(value, torch.Tensor):
        return
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        yield value
        return
    # Megatron hangs main_grad and main_param on parameters, which are no part of them.
    inner = [
        one
        for name, one in vars(value).items()
        if isinstance(one, torch.Tensor) and not name.startswith("main_")
    ]
    with suppress(Exception):
        inner += [getattr(value, name) for name in value.__tensor_flatten__()[0]]
    yield value
    for one in inner:
        if one is not value and type(one) in (torch.Tensor, torch.nn.Parameter):
            yield one


def _modules(model: Any) -> list[torch.nn.Module]:
    return [one for one in _listed(model) if isinstance(one, torch.nn.Module)]


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]
