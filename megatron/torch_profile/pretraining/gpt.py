# SPDX-License-Identifier: Apache-2.0
"""What Megatron's flags say of a GPT model and its data, on every wheel that can train.

pretrain_gpt.py stands on it. Which of Megatron's makers of layers a flag means is the same for all
versions; what a version lacks is left out.
"""

from __future__ import annotations

import inspect
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from megatron.core.datasets.gpt_dataset import GPTDatasetConfig
from megatron.core.models.gpt.experimental_attention_variant_module_specs import (
    get_transformer_block_with_experimental_attention_variant_spec,
)
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_decoder_block_spec,
    get_gpt_decoder_layer_specs,
    get_gpt_layer_with_transformer_engine_spec,
    get_gpt_mtp_block_spec,
)
from megatron.core.models.gpt.heterogeneous.heterogeneous_layer_specs import (
    get_gpt_heterogeneous_layer_spec,
)
from megatron.core.transformer.multi_token_prediction import get_mtp_ranks, mtp_on_this_rank
from megatron.core.transformer.spec_utils import import_module
from megatron.training import arguments, get_args
from megatron.training.datasets.fim_dataset import GPTFIMDatasetConfig
from megatron.training.utils import get_blend_and_blend_per_split
from megatron.training.yaml_arguments import core_transformer_config_from_yaml

try:  # moved in megatron-core 0.19
    from megatron.core.tokenizers.utils.build_tokenizer import build_tokenizer
except ImportError:
    from megatron.training import get_tokenizer

    build_tokenizer = None

try:  # of megatron-core 0.19
    from megatron.core.models.gpt.experimental_attention_variant_module_specs import (
        get_transformer_layer_with_experimental_attention_variant_spec as attention_variant_layers,
    )
except ImportError:
    attention_variant_layers = None

# Names of the data set's settings that are not those of the arguments.
ARGUMENT_OF_SETTING = {
    "random_seed": "seed",
    "sequence_length": "seq_length",
    "path_to_cache": "data_cache_path",
    "create_attention_mask": "create_attention_mask_in_dataloader",
    "fast_cache_load": "dataloader_fast_cache_load",
    "defer_npy_index_mmap": "dataloader_defer_npy_index_mmap",
}
# Only a layer, and no block of layers, can be told to group what a dense MLP multiplies.
DENSE_GROUPED_GEMM = "use_grouped_gemm_for_dense_mlp"
ENGINE_LAYER = (
    *("qk_layernorm", "qk_l2_norm", "multi_latent_attention", "mla_down_proj_fusion"),
    *("use_kitchen", "use_kitchen_attention", "kitchen_attention_backend"),
    *("use_te_activation_func", DENSE_GROUPED_GEMM),
)


def transformer_config(args: Any) -> Any:
    """What the arguments, or `--yaml-cfg`, say of the layers."""
    if args.yaml_cfg is not None:
        return core_transformer_config_from_yaml(args, "language_model")
    return arguments.core_transformer_config_from_args(args)


def layer_spec(args: Any, config: Any, vp_stage: int | None) -> Any:
    """The layers of a stage: a specification of the user's own, or the one that the flags mean."""
    engine = args.transformer_impl == "transformer_engine"
    if args.spec is not None:
        return import_module(args.spec)
    if args.experimental_attention_variant is not None:
        return get_transformer_block_with_experimental_attention_variant_spec(
            config=config, vp_stage=vp_stage
        )
    if args.heterogeneous_layers_config_path is not None and not args.num_experts:
        return get_gpt_heterogeneous_layer_spec(config, engine)
    if engine and getattr(config, DENSE_GROUPED_GEMM, False) and not args.num_experts:
        options = {name: getattr(config, name) for name in ENGINE_LAYER if hasattr(config, name)}
        return get_gpt_layer_with_transformer_engine_spec(**options)
    return get_gpt_decoder_block_spec(config, vp_stage=vp_stage, **layer_options(args))


def layer_options(args: Any) -> dict[str, Any]:
    """What Megatron's makers of layers want beside the configuration."""
    return {
        "use_transformer_engine": args.transformer_impl == "transformer_engine",
        "normalization": args.normalization,
        "qk_l2_norm": args.qk_l2_norm,
    }


def mtp_spec(args: Any, config: Any, vp_stage: int | None) -> Any:
    """The layers that predict further tokens (`--mtp-num-layers`), each as the decoder's last."""
    if args.mtp_num_layers is None:
        return None
    if args.experimental_attention_variant is not None and attention_variant_layers:
        layers = attention_variant_layers(config=config)
    else:
        layers = get_gpt_decoder_layer_specs(config, vp_stage=vp_stage, **layer_options(args))
    engine = args.transformer_impl == "transformer_engine"
    return get_gpt_mtp_block_spec(config, layers[-1], engine, vp_stage=vp_stage)


def embedding_ranks(pp_ranks: list[int]) -> list[int]:
    """The stages that hold the word embeddings: the first, and those that use them for a loss."""
    args = get_args()
    ranks = {pp_ranks[0]}
    if len(pp_ranks) > 1:
        if not args.untie_embeddings_and_output_weights:
            ranks.add(pp_ranks[-1])
        ranks.update(get_mtp_ranks(pp_ranks, transformer_config(args)))
    return sorted(ranks)


def predicts_further_tokens(vp_stage: int | None) -> bool:
    """Whether this stage holds layers of `--mtp-num-layers`, which compute a loss from tokens."""
    args = get_args()
    if args.mtp_num_layers is None:
        return False
    config = transformer_config(args)
    if "config" in inspect.signature(mtp_on_this_rank).parameters:  # before megatron-core 0.18
        return bool(mtp_on_this_rank(config, ignore_virtual=False, vp_stage=vp_stage))
    return bool(
        mtp_on_this_rank(
            layout=config.pipeline_model_parallel_layout,
            mtp_num_layers=config.mtp_num_layers,
            ignore_virtual=False,
            vp_stage=vp_stage,
        )
    )


def dataset_config(args: Any) -> GPTDatasetConfig:
    """The settings of this version's data sets, each from the argument that it is named after."""
    blend, blend_per_split = get_blend_and_blend_per_split(args)
    per_dataset = args.per_dataset_sequences_path
    known: dict[str, Any] = {
        "blend": blend,
        "blend_per_split": blend_per_split,
        "tokenizer": build_tokenizer(args) if build_tokenizer else get_tokenizer(),
        "sequences_per_dataset": json.loads(Path(per_dataset).read_text()) if per_dataset else None,
        "sequence_parallel_size": args.tensor_model_parallel_size * args.sequence_parallel,
    }
    kind = GPTFIMDatasetConfig if args.fim_data else GPTDatasetConfig
    if args.fim_data:
        tokens = ("prefix", "middle", "suffix", "pad", "eod")
        known["fim_extra_tokens"] = {t: getattr(args, f"fim_{t}_token") for t in tokens}
    for setting in (field.name for field in fields(kind) if field.init):
        argument = ARGUMENT_OF_SETTING.get(setting, setting)
        if setting not in known and hasattr(args, argument):
            known[setting] = getattr(args, argument)
    return kind(**known)
