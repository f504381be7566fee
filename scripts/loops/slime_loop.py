# SPDX-License-Identifier: Apache-2.0
"""slime's own steps on a CPU, with the lines of docs/other-loops.md.

torchrun --nproc-per-node 2 -m megatron.torch_profile --cpu scripts/loops/slime_loop.py

"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import page_examples
import wrapt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import toy_rollouts

ROLLOUTS, STEPS_EACH, SAMPLES, LENGTH, VOCABULARY = 2, 2, 2, 64, 128
WORDS = (
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 "
    "--max-position-embeddings 64 --position-embedding-type rope --normalization RMSNorm "
    "--swiglu --disable-bias-linear --untie-embeddings-and-output-weights --vocab-size 127 "
    "--make-vocab-size-divisible-by 128 --transformer-impl local --no-persist-layer-norm "
    "--no-masked-softmax-fusion --no-gradient-accumulation-fusion --no-bias-swiglu-fusion "
    "--no-bias-dropout-fusion --no-rope-fusion --use-cpu-initialization --lr 1e-3 "
    "--lr-decay-style constant --lr-decay-iters 4 "
    "--attention-dropout 0 --hidden-dropout 0 --bf16 --pipeline-model-parallel-size 2 "
    "--micro-batch-size 1 --global-batch-size 2 --tokenizer-type NullTokenizer "
    "--distributed-backend gloo --load none "
    "--loss-type sft_loss --rollout-batch-size 4 --n-samples-per-prompt 1 --num-rollout 2 "
    "--custom-megatron-init-path profile_slime.follow --data-pad-size-multiplier 64"
)


def without_an_inference_engine() -> None:
    """Modules that slime's command line takes more options from, which nothing here reads."""
    for name in ("sglang", "sglang.srt", "sglang.srt.server_args", "sglang_router.launch_router"):
        sys.modules[name] = ModuleType(name)
    vars(sys.modules["sglang.srt.server_args"])["ServerArgs"] = None
    vars(sys.modules["sglang_router.launch_router"])["RouterArgs"] = None


def cpu_as_an_accelerator() -> None:
    """slime's way to torch.cuda, which `--cpu` makes the CPU, for a machine without one."""
    from slime.utils import accelerator
    from slime.utils.accelerator.cuda import CUDAAccelerator

    class OnTheCpu(CUDAAccelerator):  # type: ignore[misc]
        name = "cpu"

        def is_available(self) -> bool:
            return True

    accelerator.register_accelerator("cpu", OnTheCpu)


def arguments() -> Any:
    """Of Megatron and slime, from one command line."""
    from slime.backends.megatron_utils import arguments as of_slime
    from slime.utils.arguments import get_slime_extra_args_provider

    sys.argv[1:] = WORDS.split()
    args = of_slime.megatron_parse_args(get_slime_extra_args_provider(), skip_hf_validate=True)
    args.rank, args.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    of_slime.validate_args(args)
    args.moe_use_legacy_grouped_gemm = False
    return args


def without_an_old_flag() -> None:
    """megatron-core 0.19 has lost a flag that slime gives it."""
    provider: Any = importlib.import_module("slime.backends.megatron_utils.model_provider")
    made = provider.get_gpt_layer_local_spec

    def spec(*given: Any, moe_use_legacy_grouped_gemm: bool, **named: Any) -> Any:
        return made(*given, **named)

    provider.get_gpt_layer_local_spec = spec


def rollout(seed: int) -> dict[str, Any]:
    """Samples by chance, one a micro-batch, half of each to learn."""
    import torch

    chance = torch.Generator().manual_seed(seed)
    count, learned = STEPS_EACH * SAMPLES, LENGTH // 2
    draw = range(count)
    return {
        "tokens": [torch.randint(VOCABULARY - 1, (LENGTH,), generator=chance) for _ in draw],
        "total_lengths": [LENGTH] * count,
        "response_lengths": [learned] * count,
        "loss_masks": [torch.ones(learned) for _ in draw],
        "rollout_mask_sums": [torch.tensor(float(learned)) for _ in draw],
        "micro_batch_indices": [[number] for number in draw],
    }


def in_all_digits(model: Any) -> None:
    """Losses as Megatron prints them."""
    from megatron.core import parallel_state

    train_one_step, done = model.train_one_step, []

    def said(*given: Any, **named: Any) -> Any:
        losses, norm = train_one_step(*given, **named)
        done.append(norm)
        if parallel_state.is_pipeline_last_stage(ignore_virtual=True):
            loss, norm = float(losses["loss"]).hex(), float(norm).hex()
            at = f"iteration {len(done)}/{ROLLOUTS * STEPS_EACH}"
            print(f"{at} | loss: {loss} | grad norm: {norm} |", flush=True)
        return losses, norm

    model.train_one_step = said


def main() -> None:
    import torch

    without_an_inference_engine()
    cpu_as_an_accelerator()
    wrapt.wrap_function_wrapper(
        "megatron.core.models.gpt.gpt_model", "GPTModel.forward", toy_rollouts.unpacked
    )
    page_examples.imported("slime", "profile_slime")
    torch.distributed.init_process_group("gloo")
    model = importlib.import_module("slime.backends.megatron_utils.model")
    data = importlib.import_module("slime.backends.megatron_utils.data")
    args = arguments()
    importlib.import_module("slime.backends.megatron_utils.initialize").init(args)
    in_all_digits(model)
    without_an_old_flag()
    chunks, optimizer, scheduler = model.setup_model_and_optimizer(args)
    for number in range(ROLLOUTS):
        batches = data.get_data_iterator(rollout(number))
        sizes = [SAMPLES] * STEPS_EACH
        model.train(number, chunks, optimizer, scheduler, batches, sizes, sizes)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
