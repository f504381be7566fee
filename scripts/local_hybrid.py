# SPDX-License-Identifier: Apache-2.0
"""A stack for pretrain_hybrid.py of megatron-core's own layers: its own needs Transformer Engine.

pretrain_hybrid.py --spec local_hybrid STACK, with scripts/ on PYTHONPATH. It has attention (`*`)
and MLPs (`-`); Mamba layers need kernels of a GPU.
"""

from __future__ import annotations

from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.hybrid.hybrid_block import HybridStack, HybridStackSubmodules
from megatron.core.ssm.mlp_layer import MLPLayer
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules

_LOCAL = get_gpt_layer_local_spec().submodules

STACK = ModuleSpec(
    module=HybridStack,
    submodules=HybridStackSubmodules(
        attention_layer=ModuleSpec(
            module=TransformerLayer,
            submodules=TransformerLayerSubmodules(
                input_layernorm=_LOCAL.input_layernorm,
                self_attention=_LOCAL.self_attention,
                self_attn_bda=_LOCAL.self_attn_bda,
            ),
        ),
        mlp_layer=ModuleSpec(
            module=MLPLayer,
            submodules=TransformerLayerSubmodules(
                pre_mlp_layernorm=_LOCAL.pre_mlp_layernorm,
                mlp=_LOCAL.mlp,
                mlp_bda=_LOCAL.mlp_bda,
            ),
        ),
    ),
)
