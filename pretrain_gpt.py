# SPDX-License-Identifier: Apache-2.0
"""Pretrain GPT with megatron-core's own training loop, of whichever version is installed.

    torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 24 ... --data-path my_text_document
    python pretrain_gpt.py --num-layers 2 ... --mock-data --torch-profile

Every flag is Megatron's (`--help` lists them) or one of --torch-profile's; the few that need
another script are refused. Without CUDA it says so and trains on the CPU over gloo. What is here is
what Megatron asks its user for: a model, a batch, a loss and the datasets.
"""

from __future__ import annotations

import inspect
import os
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, MockGPTDataset
from megatron.core.enums import ModelType
from megatron.core.models.gpt import GPTModel
from megatron.core.rerun_state_machine import get_rerun_state_machine
from megatron.core.utils import StragglerDetector
from megatron.training import (
    arguments,
    get_args,
    get_timers,
    inprocess_restart,
    pretrain,
    print_rank_0,
)
from megatron.training.datasets.fim_dataset import GPTFIMDataset

import megatron.torch_profile
from megatron.torch_profile.cpu import megatron_names
from megatron.torch_profile.cpu import training as cpu
from megatron.torch_profile.log import exit_with
from megatron.torch_profile.patching import PatchSet
from megatron.torch_profile.plan import launchers
from megatron.torch_profile.pretraining.gpt import (
    dataset_config,
    embedding_ranks,
    layer_spec,
    mtp_spec,
    predicts_further_tokens,
    transformer_config,
)
from megatron.torch_trace.errors import UsageError

# What the model's forward takes, in the order of a batch.
BATCH_KEYS = ("tokens", "position_ids", "attention_mask", "labels", "loss_mask")

# What trains on packed sequences, another model's answers or models that the wheels do not hold.
REFUSED = (
    "--sft",
    "--hybrid-context-parallel",
    "--dataloader-inter-document-masking",
    "--logits-load-dir",
    "--use-legacy-models",
)
SPIKE = 10  # times the largest loss so far is what `--check-for-spiky-loss` finds

straggler_timer = StragglerDetector()


def build_model(
    pre_process: bool = True,
    post_process: bool = True,
    vp_stage: int | None = None,
    config: Any = None,
    pg_collection: Any = None,
) -> GPTModel:
    """Megatron's model provider: the layers of one pipeline stage, dense or mixture of experts."""
    args = get_args()
    config = config or transformer_config(args)
    return GPTModel(
        config=config,
        transformer_layer_spec=layer_spec(args, config, vp_stage),
        vocab_size=args.padded_vocab_size,
        max_sequence_length=args.max_position_embeddings,
        pre_process=pre_process,
        post_process=post_process,
        fp16_lm_cross_entropy=args.fp16_lm_cross_entropy,
        parallel_output=True,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
        position_embedding_type=args.position_embedding_type,
        rotary_percent=args.rotary_percent,
        rotary_base=args.rotary_base,
        rope_scaling=args.use_rope_scaling,
        mtp_block_spec=mtp_spec(args, config, vp_stage),
        vp_stage=vp_stage,
        pg_collection=pg_collection,
    )


def next_batch(data_iterator: Iterator[dict[str, torch.Tensor]]) -> list[torch.Tensor | None]:
    """The next micro-batch of this data-parallel rank, this context-parallel rank's part of it.

    Returns:
        The tensors of `BATCH_KEYS`, of shape [micro-batch, sequence / context parallel size]; the
        attention mask is None unless `--create-attention-mask-in-dataloader` makes one.
    """
    sample = next(data_iterator)
    batch = {
        key: sample[key].cuda(non_blocking=True) if sample.get(key) is not None else None
        for key in BATCH_KEYS
    }
    cp_size = parallel_state.get_context_parallel_world_size()
    if cp_size > 1:
        # Two chunks each, one from either end: causal attention costs more the later the token.
        rank = parallel_state.get_context_parallel_rank()
        for key, tensor in batch.items():
            if tensor is not None:
                dim = 2 if key == "attention_mask" else 1
                chunks = tensor.chunk(2 * cp_size, dim=dim)
                batch[key] = torch.cat((chunks[rank], chunks[-1 - rank]), dim=dim)
    return [batch[key] for key in BATCH_KEYS]


def loss(
    loss_mask: torch.Tensor, losses: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Sum of the token losses, number of tokens, and both for Megatron's log."""
    total = torch.sum(losses.view(-1).float() * loss_mask.view(-1).float())
    num_tokens = loss_mask.sum().detach().to(torch.int)
    check_loss(total)
    return total, num_tokens, {"lm loss": torch.stack([total.detach(), num_tokens.float()])}


def check_loss(total: torch.Tensor) -> None:
    """Have Megatron look at a loss before other ranks' are added to it."""
    args, machine = get_args(), get_rerun_state_machine()
    check = partial(machine.validate_result, result=total, tolerance=0.0)
    if args.check_for_nan_in_loss_and_grad:
        for found, name in ((torch.isnan, "NaN"), (torch.isinf, "Inf")):
            message = f"found {name} in local forward loss calculation"
            check(rejection_func=found, message=message, fatal=True)
    if args.check_for_spiky_loss:
        spiky = partial(machine.is_unexpectedly_large, threshold=SPIKE, context="loss")
        check(rejection_func=spiky, message="Spiky loss", fatal=False)


def forward_step(
    data_iterator: Iterator[dict[str, torch.Tensor]], model: Any, return_schedule_plan: bool = False
) -> tuple[Any, Callable[[torch.Tensor], Any]]:
    """One micro-batch forward; stages in the middle of the pipeline have no use for the batch."""
    timers = get_timers()
    timers("batch-generator", log_level=2).start()
    batch: list[torch.Tensor | None] = [None] * len(BATCH_KEYS)
    with straggler_timer(bdata=True):
        if data_iterator is not None and _needs_data(_vp_stage(model)):
            batch = next_batch(data_iterator)
    timers("batch-generator").stop()
    tokens, position_ids, attention_mask, labels, loss_mask = batch
    # Megatron asks for the plan where it overlaps the communication of experts.
    forward = _innermost(model).build_schedule_plan if return_schedule_plan else model
    with straggler_timer:
        output = forward(tokens, position_ids, attention_mask, labels=labels, loss_mask=loss_mask)
    return output, partial(loss, loss_mask)


def build_datasets(num_samples: list[int], vp_stage: int | None = None) -> Any:
    """Training, validation and test data: `--data-path` blends and splits, or `--mock-data`."""
    args = get_args()
    kind = MockGPTDataset if args.mock_data else GPTFIMDataset if args.fim_data else GPTDataset
    print_rank_0("> building train, validation and test datasets ...")
    # Every tensor-parallel rank reads the (memory-mapped) data itself: no broadcast to trace.
    return BlendedMegatronDatasetBuilder(
        kind, num_samples, lambda: _needs_data(vp_stage), dataset_config(args)
    ).build()


build_datasets.is_distributed = True  # type: ignore[attr-defined]  # each rank builds its own


def _innermost(model: Any) -> Any:
    while hasattr(model, "module"):
        model = model.module
    return model


def _vp_stage(model: Any) -> int | None:
    return getattr(_innermost(model), "vp_stage", None)


def _needs_data(vp_stage: int | None) -> bool:
    """Whether this stage embeds tokens or computes a loss."""
    stages = {"ignore_virtual": vp_stage is None, "vp_stage": vp_stage}
    return bool(
        parallel_state.is_pipeline_first_stage(**stages)
        or parallel_state.is_pipeline_last_stage(**stages)
        or predicts_further_tokens(vp_stage)
    )


def set_defaults(parser: ArgumentParser) -> ArgumentParser:
    """Megatron's defaults need Transformer Engine and Apex; without them, what torch can do."""
    if not find_spec("transformer_engine"):
        parser.set_defaults(transformer_impl="local")
        # These modules are Apex's CUDA extensions; PyPI's apex is another package.
        if not find_spec("scaled_upper_triang_masked_softmax_cuda"):
            parser.set_defaults(masked_softmax_fusion=False)
        if not find_spec("fused_weight_gradient_mlp_cuda"):
            parser.set_defaults(gradient_accumulation_fusion=False, no_persist_layer_norm=True)
    parser.set_defaults(tokenizer_type="NullTokenizer")
    return parser


def started_by_launcher() -> None:
    """Tell Megatron its rank in the words that it reads; without a GPU one process is enough."""
    try:
        os.environ.update(launchers.rank_environment(os.environ))
    except UsageError as error:
        exit_with(error)
    if not torch.cuda.is_available():
        os.environ.update(cpu.alone(os.environ))


def main() -> None:
    """Train. The three generations of `pretrain` differ in who parses, and in argument order."""
    for flag in REFUSED:
        if flag in sys.argv:
            exit_with(
                UsageError(
                    f"{flag}: this pretrain_gpt.py cannot do that; start the one of Megatron-LM "
                    "with python -m megatron.torch_profile in front of it."
                )
            )
    train, store = pretrain, None
    if "--inprocess-restart" in sys.argv:
        train, store = inprocess_restart.maybe_wrap_for_inprocess_restart(pretrain)
    if "cfg_container" in inspect.signature(pretrain).parameters:  # megatron-core 0.18 and newer
        from megatron.training.argument_utils import pretrain_cfg_container_from_args

        args = arguments.parse_and_validate_args(set_defaults)
        first = {"cfg_container": pretrain_cfg_container_from_args(args)}
    else:
        first = {"extra_args_provider": set_defaults}
    train(
        train_valid_test_dataset_provider=build_datasets,
        model_provider=build_model,
        model_type=ModelType.encoder_or_decoder,
        forward_step_func=forward_step,
        get_embedding_ranks=embedding_ranks,
        store=store,
        **first,
    )


if __name__ == "__main__":
    started_by_launcher()
    megatron.torch_profile.install()
    PatchSet((megatron_names.COMPILED_HELPERS,)).apply()
    device: AbstractContextManager[None] = (
        nullcontext() if torch.cuda.is_available() else cpu.training("no CUDA device found")
    )
    with device:
        main()
