# SPDX-License-Identifier: Apache-2.0
"""Megatron-Bridge's own loop on a CPU, with the callback of docs/other-loops.md.

    torchrun --nproc-per-node 2 -m megatron.torch_profile --cpu scripts/bridge_loop.py ...

It ran where these were installed, megatron-bridge and the last two without what they ask for:
megatron-bridge 0.6.2, megatron-core 0.19.2, transformers, peft, datasets, accelerate, hydra-core,
wandb, pybind11, einops, nvidia-modelopt, megatron-energon and all that it asks for, diffusers, and
the Python part of nvidia-resiliency-ext (August 2026), whose wheels are for newer systems.

`pretrain` of Megatron-Bridge trains a GPT of two layers for four iterations, in a pipeline of two
stages. It imports Transformer Engine, whatever the model, for adapters that this model has not: an
empty module is there while it is imported. What `--cpu` does for megatron.training it does for
Megatron-Bridge here: no check for a GPU, no fusions.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "docs" / "other-loops.md"
LENGTH = 32
"""Tokens of a sample."""


def callback_of_the_page(page: str) -> Any:
    """The callback that users are told to write, made."""
    section = page.split("\n## Megatron-Bridge\n")[1].split("\n## ")[0]
    code = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0]
    names: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), names)
    return names["TorchProfile"]()


_BEFORE = (
    "megatron.core.extensions.transformer_engine",
    "megatron.core.models.gpt.gpt_layer_specs",
    "megatron.training",
)
"""Modules that look for Transformer Engine, and should not find it."""


def import_bridge(*names: str) -> None:
    """Import modules as if Transformer Engine were there, and nothing else so.

    Args:
        names: of Megatron-Bridge, or of a package that asks for as little.
    """
    for before in _BEFORE:
        importlib.import_module(before)
    engine, layers = ModuleType("transformer_engine"), ModuleType("transformer_engine.pytorch")
    vars(engine)["pytorch"] = layers
    vars(layers)["ops"] = SimpleNamespace(Sequential=None)
    stand_ins = {one.__name__: one for one in (engine, layers)}
    sys.modules.update(stand_ins)
    try:
        for name in names:
            importlib.import_module(name)
    finally:
        for one in stand_ins:
            del sys.modules[one]


def without_a_gpu() -> None:
    """What Megatron-Bridge itself asks a GPU for."""
    from megatron.bridge.training import setup

    initialize = setup.initialize_megatron
    setup.initialize_megatron = lambda *given, **named: initialize(
        *given, **named, allow_no_cuda=True
    )


def config() -> Any:
    """Of Megatron-Bridge: its recipe for a plain GPT, small and without fusions."""
    from megatron.bridge.models.gpt_provider import local_layer_spec
    from megatron.bridge.recipes.gpt.vanilla_gpt import vanilla_gpt_pretrain_config

    made = vanilla_gpt_pretrain_config()
    model = made.model
    model.num_layers, model.hidden_size, model.num_attention_heads = 2, 64, 4
    model.seq_length = made.dataset.seq_length = LENGTH
    model.pipeline_model_parallel_size = 2
    model.transformer_layer_spec = local_layer_spec
    model.use_cpu_initialization = True
    for fusion in ("masked_softmax", "bias_activation", "bias_dropout", "gradient_accumulation"):
        setattr(model, f"{fusion}_fusion", False)
    model.persist_layer_norm = model.cross_entropy_loss_fusion = False
    model.apply_rope_fusion = False
    made.train.train_iters, made.train.global_batch_size, made.train.micro_batch_size = 4, 2, 1
    made.validation.eval_iters = 0
    made.scheduler.lr_warmup_iters = 0
    made.tokenizer.vocab_size = 8191
    made.logger.log_interval, made.logger.tensorboard_dir = 1, None
    made.checkpoint.save = None
    made.dist.distributed_backend = "gloo"
    made.mixed_precision = None
    made.env_vars = {}
    return made


def main() -> None:
    import_bridge("megatron.bridge.training.pretrain")
    without_a_gpu()
    from megatron.bridge.training.gpt_step import forward_step
    from megatron.bridge.training.pretrain import pretrain

    pretrain(config(), forward_step, callbacks=[callback_of_the_page(PAGE.read_text())])


if __name__ == "__main__":
    main()
