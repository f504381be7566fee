# SPDX-License-Identifier: Apache-2.0
"""Megatron's names that insist on a GPU, and what stands in their place on the CPU."""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import wrapt

from megatron.torch_profile.patching import Patch


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


def _without_engine(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    # Core 0.13 and 0.14 ask whether this is None, and have no such name without Transformer Engine.
    vars(sys.modules[wrapped.__module__]).setdefault("te_general_gemm", None)
    return wrapped(*args, **kwargs)


def _norm_of_a_part_of_the_sequence(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    # torch's norms need not know: Megatron adds up the gradients of what is marked so.
    kind, config, *rest = args if len(args) > 1 else (*args, kwargs.pop("config"))
    if not config.sequence_parallel:
        return wrapped(kind, config, *rest, **kwargs)
    whole = copy.copy(config)
    whole.sequence_parallel = False
    norm = wrapped(kind, whole, *rest, **kwargs)
    for parameter in norm.parameters():
        parameter.sequence_parallel = True
    return norm


def _as_a_copy_from_the_gpu(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    # What comes from a GPU becomes an array where asked, and all_to_all takes no sizes in a tensor.
    moved = wrapped(*args, **kwargs)
    as_array = kwargs.get("as_numpy", args[1] if len(args) > 1 else False)
    return moved.numpy() if as_array and hasattr(moved, "numpy") else moved


def _get_rng_state(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    import torch

    return torch.get_rng_state()


def _set_rng_state(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> None:
    import torch

    torch.set_rng_state(args[0] if args else kwargs["new_state"])


def _norms_of_images(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    # Without Transformer Engine its default is torch's own norm, which takes none of its arguments.
    if find_spec("transformer_engine") is None and len(args) <= 2:
        from megatron.core.transformer.torch_norm import WrappedTorchNorm

        norms = {"ln_pre_impl": WrappedTorchNorm, "ln_post_impl": WrappedTorchNorm}
        kwargs = norms | kwargs
    return wrapped(*args, **kwargs)


def attention_splits_sequences() -> bool:
    """Whether the Megatron at hand has context parallelism in its own attention; few have."""
    try:
        core = find_spec("megatron.core")  # without importing it
    except ModuleNotFoundError:
        return False
    folders = (core.submodule_search_locations if core else None) or ()
    return any((Path(folder) / _SPLIT_ATTENTION).is_file() for folder in folders)


COMPILED_HELPERS = Patch(
    "megatron.core.datasets.utils", "compile_helpers", _compile_if_missing, since=(0, 7)
)

_ROUTER = "megatron.core.transformer.moe.router"
_DISPATCHER = "megatron.core.transformer.moe.token_dispatcher"
_SPLIT_ATTENTION = "transformer/dot_product_attention_context_parallel.py"
_IMAGES = "megatron.core.models.vision.clip_vit_model"
_NORM = "megatron.core.transformer.torch_norm"

PATCHES = (
    Patch("megatron.training.training", "initialize_megatron", _no_cuda_needed),
    # Compiles fused kernels by running them on a GPU.
    Patch("megatron.training.training", "set_jit_fusion_options", _nothing),
    COMPILED_HELPERS,
    Patch(_ROUTER, "router_gating_linear", _without_engine, (0, 13)),
    Patch(_DISPATCHER, "maybe_move_tensor_to_cpu", _as_a_copy_from_the_gpu, (0, 12)),
    Patch(_NORM, "WrappedTorchNorm.__new__", _norm_of_a_part_of_the_sequence, (0, 10)),
    Patch(_IMAGES, "CLIPViTModel.__init__", _norms_of_images, (0, 10)),
    Patch("megatron.core.tensor_parallel.random", "_get_cuda_rng_state", _get_rng_state, (0, 9)),
    Patch("megatron.core.tensor_parallel.random", "_set_cuda_rng_state", _set_rng_state),
)


_BERT = "megatron.core.models.bert.bert_layer_specs"
_T5 = "megatron.core.models.T5.t5_spec"
_HYBRID = "megatron.core.models.hybrid.hybrid_block"
ENGINES: dict[str, tuple[str, str]] = {
    # pretrain_bert.py imports it also where the local one is asked for.
    _BERT: ("bert_layer_with_transformer_engine_spec", "bert_layer_local_spec"),
    # Blocks of local layers end with it all the same.
    _T5: ("TENorm", "LNImpl"),
    _HYBRID: ("TENorm", "WrappedTorchNorm"),
}
"""Module -> a name of Transformer Engine in it, and the name of what a CPU takes instead."""


@contextlib.contextmanager
def local_where_no_engine() -> Iterator[None]:
    """While open, models of local layers need no Transformer Engine; where it is, nothing changes.

    Modules that are imported later have the stand-ins, too, and all lose them at the end.
    """
    if find_spec("transformer_engine") is not None:
        yield
        return
    before: list[tuple[Any, str, Any]] = []
    active = True

    def stand_in(module: Any) -> None:
        name, local = ENGINES[module.__name__]
        found = vars(module).get(local)
        if found is None and local == "WrappedTorchNorm":
            from megatron.core.transformer import torch_norm

            found = torch_norm.WrappedTorchNorm
        if active and found is not None:
            before.append((module, name, vars(module).get(name)))
            setattr(module, name, found)

    for name in ENGINES:
        wrapt.register_post_import_hook(stand_in, name)
    try:
        yield
    finally:
        active = False
        for module, name, had in before:
            delattr(module, name) if had is None else setattr(module, name, had)
