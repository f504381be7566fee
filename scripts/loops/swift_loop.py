# SPDX-License-Identifier: Apache-2.0
"""ms-swift's own `megatron sft` on a CPU, with the callback of docs/other-loops.md.

torchrun --nproc-per-node 2 -m megatron.torch_profile --cpu scripts/loops/swift_loop.py

"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import page_examples
import tiny_model

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import bridge_loop

STEPS = 4
WORDS = (
    "--torch_dtype bfloat16 --model_type qwen2 --template qwen2_5 --check_model false "
    "--train_iters 4 --micro_batch_size 1 --global_batch_size 2 --max_length 128 "
    "--pipeline_model_parallel_size 2 --padding_free false --logging_steps 1 "
    "--split_dataset_ratio 0 --eval_iters 0 --save_steps 1000 --attention_backend local "
    "--recompute_granularity none "
    "--masked_softmax_fusion false --bias_dropout_fusion false "
    "--gradient_accumulation_fusion false --cross_entropy_loss_fusion false "
    "--apply_rope_fusion false --use_cpu_initialization true --lr 1e-3 --dataset_num_proc 1 "
    "--dataloader_num_workers 0 --tuner_type full --callbacks torch_profile in_all_digits"
)


def classes_of_an_engine() -> None:
    """Classes that nothing is an instance of, where ms-swift asks for Transformer Engine's."""
    import torch

    engine = importlib.import_module("megatron.core.extensions.transformer_engine")
    for name, value in [*vars(engine).items()]:
        if name.startswith("TE") and not isinstance(value, type):
            setattr(engine, name, type(name, (torch.nn.Module,), {}))


def without_engine() -> None:
    """Layers of megatron-core in the place of Transformer Engine's, from weights by chance."""
    from mcore_bridge.bridge import GPTBridge
    from mcore_bridge.model import register

    made = register.get_gpt_decoder_block_spec

    def local(config: Any, use_transformer_engine: bool, **more: Any) -> Any:
        config.persist_layer_norm = False
        return made(config, use_transformer_engine=False, **more)

    register.get_gpt_decoder_block_spec = local
    GPTBridge.load_weights = lambda self, models, *_, **__: by_chance(models)


def by_chance(models: list[Any]) -> None:
    """Weights, which the bridge would have read: those of norms are one, and no bias is there."""
    import torch

    for model in models:
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.02)
            else:
                torch.nn.init.constant_(parameter, float(name.endswith("norm.weight")))


def in_all_digits() -> None:
    """Losses as Megatron prints them."""
    from swift.megatron.callbacks import megatron_callbacks_map
    from swift.megatron.callbacks.base import MegatronCallback

    class InAllDigits(MegatronCallback):
        def on_log(self, logs: dict[str, Any]) -> None:
            if "loss" in logs:
                loss, norm = (float(logs[name]).hex() for name in ("loss", "grad_norm"))
                at = f"iteration {self.state.iteration}/{STEPS}"
                print(f"{at} | loss: {loss} | grad norm: {norm} |", flush=True)

    megatron_callbacks_map["in_all_digits"] = InAllDigits


def main() -> None:
    folder = Path(f"model-{os.environ['RANK']}").resolve()
    classes_of_an_engine()
    importlib.import_module("peft")  # which asks for Transformer Engine in another way
    bridge_loop.import_bridge("mcore_bridge.tuners.lora", "mcore_bridge.model.gpt_model")
    # Before transformers' models: typing keeps the first order of a union, ms-swift's parser needs
    # its own.
    importlib.import_module("swift.megatron.arguments")
    tiny_model.write_model(folder)
    data = tiny_model.write_lines(folder / "conversations.jsonl")
    plugin = folder / "profile_swift.py"
    plugin.write_text(page_examples.code("ms-swift"))
    without_engine()
    in_all_digits()
    from swift.megatron import megatron_sft_main

    words = ["--model", folder, "--dataset", data, "--external_plugins", plugin]
    megatron_sft_main([*map(str, words), "--output_dir", "trained", *WORDS.split()])


if __name__ == "__main__":
    main()
