# SPDX-License-Identifier: Apache-2.0
"""verl's own trainer of conversations on a CPU, with the lines of docs/other-loops.md.

torchrun --nproc-per-node 2 -m megatron.torch_profile --cpu scripts/loops/verl_loop.py ...

"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import bridge_loop
import page_examples
import tiny_model

STEPS = 4


def settings(folder: Path, data: Path) -> list[str]:
    """What verl's command line would have."""
    return [
        "engine=megatron",
        "optim=megatron",
        "model_type=language_model",
    ]


def composed(folder: Path, data: Path) -> Any:
    from hydra import compose, initialize_config_module

    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose(
            "sft_trainer_engine",
            [
                "engine=megatron",
                "optim=megatron",
                f"model.path={folder}",
                "model.use_remove_padding=False",
                "model.external_lib=profile_verl",
                "engine.pipeline_model_parallel_size=2",
                "engine.sequence_parallel=False",
                "engine.dtype=bfloat16",
                "engine.override_transformer_config.attention_backend=local",
                "+engine.override_transformer_config.use_cpu_initialization=True",
                "+engine.override_transformer_config.masked_softmax_fusion=False",
                "+engine.override_transformer_config.persist_layer_norm=False",
                "+engine.override_transformer_config.gradient_accumulation_fusion=False",
                f"data.train_files={data}",
                "data.train_batch_size=4",
                "data.micro_batch_size_per_gpu=2",
                "data.use_dynamic_bsz=False",
                "data.num_workers=0",
                "data.max_length=128",
                "trainer.logger=[console]",
                f"trainer.total_training_steps={STEPS}",
                "trainer.resume_mode=disable",
            ],
        )


def without_engine() -> None:
    """Layers of megatron-core in the place of Transformer Engine's, from weights by chance."""
    bridge_loop.import_bridge("megatron.bridge")
    from megatron.bridge import AutoBridge
    from megatron.bridge.models.gpt_provider import local_layer_spec

    made = AutoBridge.to_megatron_provider

    def local(self: Any, *given: Any, **named: Any) -> Any:
        provider = made(self, *given, **named)
        provider.transformer_layer_spec = local_layer_spec
        return provider

    AutoBridge.to_megatron_provider = local
    AutoBridge.load_hf_weights = lambda self, model, *_, **__: model
    _without_padding_masks()


def _without_padding_masks() -> None:
    # Transformer Engine takes a mask of tokens; after the tokens of a causal model there is none.
    from megatron.core.models.gpt.gpt_model import GPTModel

    forward = GPTModel.forward

    def forwarded(self: Any, *given: Any, **named: Any) -> Any:
        return forward(self, *given, **named | {"attention_mask": None})

    GPTModel.forward = forwarded


def in_all_digits() -> None:
    """Losses as Megatron prints them."""
    from verl.utils import tracking

    def log(self: Any, data: dict[str, Any], step: int, backend: Any = None) -> None:
        loss, norm = (float(data[f"train/{name}"]).hex() for name in ("loss", "grad_norm"))
        print(f"iteration {step}/{STEPS} | loss: {loss} | grad norm: {norm} |", flush=True)

    tracking.Tracking.log = log


def main() -> None:
    rank = os.environ["RANK"]
    folder = Path(f"model-{rank}").resolve()
    tiny_model.write_model(folder)
    import pandas
    import torch

    torch.cuda.mem_get_info = lambda *_: (0, 0)

    data = folder / "conversations.parquet"
    pandas.DataFrame(tiny_model.conversations()).to_parquet(data)
    without_engine()
    in_all_digits()
    page_examples.imported("verl", "profile_verl")
    from verl.trainer import sft_trainer

    sft_trainer.run_sft(composed(folder, data))


if __name__ == "__main__":
    main()
