# SPDX-License-Identifier: Apache-2.0
"""What a loop's own objects tell: arguments for `run.json`, coordinates, settings that are on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from megatron.torch_profile.config import argument_of
from megatron.torch_profile.plan.training_loop import Models
from megatron.torch_trace.errors import UsageError

_DIMENSIONS = {
    **dict.fromkeys(("tp", "tensor"), "tp"),
    **dict.fromkeys(("pp", "pipeline"), "pp"),
    **dict.fromkeys(("cp", "context"), "cp"),
    **dict.fromkeys(("ep", "expert"), "ep"),
    **dict.fromkeys(("dp", "fsdp", "ddp", "data"), "dp"),
}
"""First words of the names of a mesh's dimensions: `dp_shard` and `dp_replicate` are both dp."""

_SWITCHES = (
    "overlap_grad_reduce",
    "overlap_param_gather",
    "use_distributed_optimizer",
    "sequence_parallel",
    "tp_comm_overlap",
    "overlap_moe_expert_parallel_comm",
    "delay_wgrad_compute",
    "enable_cuda_graph",
)
"""Fields of megatron-core's configurations that Megatron has a flag of the same name for."""
_VALUES = (
    "cuda_graph_impl",
    "moe_token_dispatcher_type",
    "cp_comm_type",
)
_CONFIGURATIONS = ("config", "ddp_config")
_MOST_WRAPPERS = 8


def mapping_of(arguments: Any) -> dict[str, Any] | None:
    """Names and values, whatever a loop keeps its arguments in; None if it is nothing of names."""
    if isinstance(arguments, Mapping):
        return {str(name): value for name, value in arguments.items()}
    if dataclasses.is_dataclass(arguments) and not isinstance(arguments, type):
        return {each.name: getattr(arguments, each.name) for each in dataclasses.fields(arguments)}
    try:
        return {name: value for name, value in vars(arguments).items() if name[:1] != "_"}
    except TypeError:
        return None


def namespace(arguments: Any, wanted: Mapping[str, Any]) -> SimpleNamespace:
    """What stands in for Megatron's.

    Args:
        arguments: whose names it has; None for none.
        wanted: fields of the configuration, which it has too.
    """
    args = SimpleNamespace(**(mapping_of(arguments) or {}))
    for name, value in wanted.items():
        setattr(args, argument_of(name), value)
    return args


def recorded(arguments: Any, depth: int = 4) -> dict[str, Any]:
    """The same for `run.json`, with configurations inside configurations."""
    return {name: _recorded(value, depth) for name, value in (mapping_of(arguments) or {}).items()}


def _recorded(value: Any, depth: int) -> Any:
    nested = isinstance(value, Mapping) or dataclasses.is_dataclass(value)
    if not nested or isinstance(value, type) or not depth:
        return value
    return recorded(value, depth - 1)


def number(iteration: Any) -> Any:
    """An iteration as Python's whole number, if it is one of any kind (3.0, numpy's, a tensor)."""
    with suppress(Exception):
        whole = int(iteration)
        if whole == iteration:
            return whole
    return iteration


def whole_numbers(**given: Any) -> list[int | None]:
    """Arguments of `attach()` as Python's whole numbers; None stays.

    Raises:
        UsageError: one is none, or less than 1.
    """
    found = {name: number(value) for name, value in given.items()}
    for name, value in found.items():
        if value is not None and (not isinstance(value, int) or value < 1):
            raise UsageError(f"attach({name}={given[name]!r}): must be a whole number, 1 or more.")
    return [*found.values()]


def of_mesh(mesh: Any) -> tuple[dict[str, int], dict[str, int]]:
    """This rank's coordinates in a DeviceMesh, and the sizes of its dimensions.

    Dimensions with names of no parallel dimension are left out; several that mean the same one
    (replicas and shards of FSDP2) are one, the later the faster.

    Raises:
        UsageError: it is no mesh.
    """
    coordinates: dict[str, int] = {}
    sizes: dict[str, int] = {}
    if mesh is not None and not hasattr(mesh, "get_coordinate"):
        raise UsageError(f"attach(mesh={mesh!r}): must be torch's DeviceMesh over all ranks.")
    if mesh is None or mesh.get_coordinate() is None:
        return coordinates, sizes
    dimensions = zip(
        mesh.mesh_dim_names or (), mesh.get_coordinate(), mesh.mesh.shape, strict=False
    )
    for name, index, size in dimensions:
        dimension = _DIMENSIONS.get(name.lower().split("_")[0])
        if dimension:
            coordinates[dimension] = coordinates.get(dimension, 0) * size + index
            sizes[dimension] = sizes.get(dimension, 1) * size
    return coordinates, sizes


def models_of(model: Any) -> Models:
    """The models of a loop: one, or several by name."""
    if isinstance(model, Mapping):
        return Models({name: chunks_of(of) for name, of in model.items()})
    return Models(chunks_of(model))


def chunks_of(model: Any) -> list[Any]:
    """The chunks of one model."""
    chunks = model if isinstance(model, (list, tuple)) else [model]
    return [chunk for chunk in chunks if chunk is not None]


def is_same(chunks: list[Any], model: Any) -> bool:
    """Whether a model has these chunks."""
    return [id(one) for one in chunks] == [id(one) for one in chunks_of(model)]


def flags_of(models: Models) -> tuple[str, ...]:
    """What megatron-core's configurations in models switch on, in words of Megatron's flags."""
    words: dict[str, None] = {}
    most = max(map(len, models.by_name.values()), default=len(models))
    if most > 1:
        words[f"--num-virtual-stages-per-pipeline-rank={most}"] = None
    for config in _configurations(models):
        for name in _SWITCHES:
            if getattr(config, name, None) is True:
                words[_flag(name)] = None
        for name in _VALUES:
            value = getattr(config, name, None)
            if isinstance(value, str) and value:
                words[f"{_flag(name)}={value}"] = None
    return tuple(words)


def _configurations(chunks: Iterable[Any]) -> Iterable[Any]:
    for chunk in chunks:
        for _ in range(_MOST_WRAPPERS):
            for name in _CONFIGURATIONS:
                config = getattr(chunk, name, None)
                # A model of Hugging Face has a configuration too, whose fields mean other things.
                if type(config).__module__.startswith("megatron."):
                    yield config
            if not hasattr(chunk, "module"):
                break
            chunk = chunk.module


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
