# SPDX-License-Identifier: Apache-2.0
"""Parts of megatron-core's transformer, from its own specs: local, or of Transformer Engine."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch

from megatron.torch_profile.component.component import Component
from megatron.torch_profile.component.ready.attention import KERNELS, around, head_size
from megatron.torch_profile.component.ready.config_values import check_values
from megatron.torch_profile.component.ready.engine import transformer_engine
from megatron.torch_profile.component.ready.grouped_experts import GroupedExperts
from megatron.torch_profile.component.ready.ready_case import ReadyCase, names_of
from megatron.torch_profile.component.ready.sdpa_attention import SdpaAttention
from megatron.torch_trace.errors import UsageError

_INPUT = ("sequence", "micro_batch", "hidden")
_DISPATCHERS = ("allgather", "alltoall", "flex")
_LOCAL = ("local", "transformer_engine")


def self_attention(ready: ReadyCase) -> Component:
    """Query, key and value, the attention itself, and the projection."""
    from megatron.core.transformer.attention import SelfAttention
    from megatron.core.transformer.enums import AttnMaskType

    config, spec = config_of(ready), _spec(ready)
    attention = _with_kernel(ready, spec.submodules.self_attention)
    module = SelfAttention(
        config, attention.submodules, layer_number=1, attn_mask_type=AttnMaskType.causal
    )
    return _component(ready, config, module, _mask(ready))


def mlp(ready: ReadyCase) -> Component:
    """Both linear layers with what is between them."""
    from megatron.core.transformer.mlp import MLP

    config = config_of(ready)
    one = _spec(ready).submodules.mlp
    parts = one.keywords["submodules"] if isinstance(one, partial) else one.submodules
    return _component(ready, config, MLP(config, parts))


def moe(ready: ReadyCase) -> Component:
    """Router, dispatcher and experts."""
    grouped = ready.switch("grouped", False)
    if ready.sizes["top_k"] > ready.sizes["experts"]:
        raise UsageError(
            f"sizes.top_k: {ready.sizes['top_k']}; there are {ready.sizes['experts']} experts."
        )
    config = config_of(
        ready,
        num_moe_experts=ready.sizes["experts"],
        moe_router_topk=ready.sizes["top_k"],
        moe_ffn_hidden_size=ready.sizes["ffn"],
        moe_token_dispatcher_type=ready.choice("dispatcher", _DISPATCHERS),
        moe_grouped_gemm=grouped,
        add_bias_linear=False,
    )
    spec = _spec(ready, num_experts=ready.sizes["experts"], moe_grouped_gemm=grouped)
    module = _moe_of(spec.submodules.mlp, config)
    if grouped and ready.choice("implementation", _LOCAL) == "local":
        # Megatron's own grouped experts need Transformer Engine.
        module.experts = GroupedExperts(module.num_local_experts, config)
    if hasattr(module, "set_layer_number"):
        module.set_layer_number(1)
    return _component(ready, config, module)


def layer(ready: ReadyCase) -> Component:
    """A whole layer."""
    from megatron.core.transformer.spec_utils import build_module

    config, spec = config_of(ready), _spec(ready)
    _with_kernel(ready, spec.submodules.self_attention)
    return _component(
        ready, config, build_module(spec, config=config, layer_number=1), _mask(ready)
    )


def stage(ready: ReadyCase) -> Component:
    """The layers of one pipeline stage."""
    from megatron.core.transformer.transformer_block import (
        TransformerBlock,
        TransformerBlockSubmodules,
    )

    config, spec = config_of(ready, num_layers=ready.sizes["layers"]), _spec(ready)
    _with_kernel(ready, spec.submodules.self_attention)
    specs = TransformerBlockSubmodules(layer_specs=[spec] * ready.sizes["layers"])
    module = TransformerBlock(config, specs, post_layer_norm=False)
    return _component(ready, config, module, _mask(ready))


def config_of(ready: ReadyCase, **more: Any) -> Any:
    """Megatron's TransformerConfig with the sizes, and with any argument of it that is given.

    Raises:
        UsageError: Megatron has no such argument, or refuses a value.
    """
    from megatron.core.transformer import TransformerConfig

    known = names_of(TransformerConfig)
    parallel = ready.config.parallel
    settings: dict[str, Any] = {
        "num_layers": 1,
        "hidden_size": ready.sizes["hidden"],
        "num_attention_heads": ready.sizes.get("heads", 1),
        "ffn_hidden_size": ready.sizes.get("ffn", 4 * ready.sizes["hidden"]),
        "params_dtype": ready.dtype,
        "bf16": ready.dtype is torch.bfloat16,
        "fp16": ready.dtype is torch.float16,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "tensor_model_parallel_size": parallel.tensor,
        "context_parallel_size": parallel.context,
        "expert_model_parallel_size": parallel.expert,
        "sequence_parallel": False,
        "use_cpu_initialization": ready.device == "cpu",
    }
    if "heads" in ready.sizes:
        head_size(ready)
    settings |= more
    if ready.device == "cpu":
        settings |= {"bias_activation_fusion": False, "masked_softmax_fusion": False}
    given = ready.others(known=known)
    check_values(TransformerConfig, given)
    settings |= given
    try:
        return TransformerConfig(**{k: v for k, v in settings.items() if k in known})
    except (ValueError, AssertionError, TypeError) as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(f"arguments: megatron-core refuses them: {said.rstrip('.')}.") from None


def _spec(ready: ReadyCase, **more: Any) -> Any:
    from megatron.core.models.gpt import gpt_layer_specs

    if ready.choice("implementation", _LOCAL) == "local":
        make = gpt_layer_specs.get_gpt_layer_local_spec
    else:
        transformer_engine()
        make = gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec
    norm = ready.case.arguments.get("normalization")
    known = inspect.signature(make).parameters
    return make(**{k: v for k, v in {"normalization": norm, **more}.items() if k in known})


def _with_kernel(ready: ReadyCase, attention: Any) -> Any:
    """The spec of an attention with one of torch's fused kernels, if one is asked for."""
    asked = ready.choice("attention", ("unfused", *(one for one in KERNELS if one != "unfused")))
    if asked != "unfused" and ready.case.arguments.get("implementation", "local") == "local":
        attention.submodules.core_attention = SdpaAttention
    return attention


def _moe_of(spec: Any, config: Any) -> Any:
    from megatron.core.transformer.moe.moe_layer import MoELayer

    if isinstance(spec, partial):
        return MoELayer(config, **spec.keywords)
    return MoELayer(config, spec.submodules)


def _mask(ready: ReadyCase) -> dict[str, Any]:
    length = ready.sizes["sequence"]
    mask = torch.ones(1, 1, length, length, dtype=torch.bool, device=ready.device).triu(1)
    return {"attention_mask": mask}


def _component(
    ready: ReadyCase, config: Any, module: torch.nn.Module, keywords: dict[str, Any] | None = None
) -> Component:
    module.to(device=ready.device, dtype=ready.dtype)
    return Component(
        module,
        (ready.normal(*_INPUT),),
        keywords or {},
        module,
        around=_around(ready, config),
        causal=True,
    )


def _around(ready: ReadyCase, config: Any) -> Callable[[], AbstractContextManager[Any]]:
    if getattr(config, "fp8", None):
        from megatron.core.fp8_utils import get_fp8_context

        return lambda: get_fp8_context(config)
    return around(str(ready.case.arguments.get("attention", "")))
