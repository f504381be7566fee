# SPDX-License-Identifier: Apache-2.0
"""torchtitan's own trainer on a CPU, with the lines of docs/other-loops.md.

torchrun --nproc-per-node 2 scripts/loops/titan_loop.py

"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import page_examples
import tiny_model

STEPS = 4
WORDS = (
    "--module llama3 --config llama3_debugmodel --training.steps 4 --training.seq-len 64 "
    "--training.local-batch-size 1 --training.global-batch-size 4 "
    "--training.disable-cuda-graphs --compile.no-enable "
    "--debug.seed 1 --checkpoint.no-enable --validator.no-enable --hf-assets-path tokenizer"
)


def cpu_as_a_device() -> None:
    """What torchtitan asks torch's module of its device for, where that is the CPU."""
    import torch
    import torch._utils

    cpu: Any = torch.cpu
    torch._utils._get_available_device_type = lambda: "cpu"
    torch._utils._get_device_module = lambda _: cpu
    cpu.current_device = lambda: 0
    cpu.device_count = lambda: 1
    cpu.get_device_name = lambda *_: "cpu"
    cpu.get_device_properties = lambda *_: SimpleNamespace(total_memory=1 << 34)
    cpu.memory_stats = lambda *_: defaultdict(int)
    cpu.reset_peak_memory_stats = cpu.empty_cache = lambda *_: None


def texts(folder: Path) -> None:
    """Texts in the place of torchtitan's samples of c4, which are no part of the package."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = (one["messages"][1]["content"] * 8 for one in tiny_model.conversations(256))
    (folder / "data.json").write_text("".join(f"{json.dumps({'text': line})}\n" for line in lines))


def attention_of_a_cpu() -> None:
    """torch's attention, causal, in the place of FlexAttention, which has no backward on a CPU."""
    import torch
    from torchtitan.models.common.attention import FlexAttention

    def causal(
        query: Any, key: Any, value: Any, *, scale: Any, enable_gqa: bool, **_: Any
    ) -> tuple[Any, None]:
        attend = torch.nn.functional.scaled_dot_product_attention
        given = attend(query, key, value, is_causal=True, scale=scale, enable_gqa=enable_gqa)
        return given, None

    FlexAttention._compiled_flex_attn = staticmethod(causal)


def sums_of_gloo() -> None:
    """FSDP2 divides gradients in NCCL's reduction, and by itself where told to."""
    from torch.distributed.fsdp import FSDPModule

    divided = FSDPModule.set_gradient_divide_factor

    def divide(self: Any, factor: float) -> None:
        divided(self, factor)
        self.set_force_sum_reduction_for_comms(True)

    FSDPModule.set_gradient_divide_factor = divide


def in_all_digits() -> None:
    """Losses as Megatron prints them."""
    from torchtitan.components.metrics import MetricsProcessor

    def log(
        self: Any, step: int, loss: float, highest: float, norm: float, *_: Any, **__: Any
    ) -> None:
        if os.environ["RANK"] == "0":
            said = f"loss: {float(loss).hex()} | grad norm: {norm.hex()} |"
            print(f"iteration {step}/{STEPS} | {said}", flush=True)

    MetricsProcessor.log = log


def main() -> None:
    cpu_as_a_device()
    folder = Path(f"rank-{os.environ['RANK']}").resolve()
    texts(folder / "tests" / "assets" / "c4_test")
    tiny_model.write_tokenizer(folder / "tokenizer")
    os.chdir(folder)
    page_examples.imported("torchtitan", "profile_titan")
    attention_of_a_cpu()
    sums_of_gloo()
    in_all_digits()
    sys.argv[1:] = WORDS.split()
    from torchtitan.train import main as train

    train()


if __name__ == "__main__":
    main()
