# SPDX-License-Identifier: Apache-2.0
"""pretrain_gpt.py made slow, so that what befalls a job finds a window open and a trace unwritten.

SECONDS_PER_STEP: what a micro-batch takes, in the job's first run; a requeued one is not slow.
SECONDS_PER_COMPRESSION: what lies between a trace's text and its compressed file.

Forty ranks of these jobs import what they never call: nothing is compiled on a CPU, no job has W&B
or a tokenizer of Hugging Face's. That is left out, as where it is not installed.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

# Before Megatron is imported.
# ruff: noqa: E402
sys.modules |= dict.fromkeys(("transformers", "wandb"))
torch.compile = lambda model=None, **_: model or (lambda function: function)

import megatron.torch_profile
import pretrain_gpt
from megatron.torch_profile.cpu import megatron_names
from megatron.torch_profile.cpu import training as cpu
from megatron.torch_profile.export import writers
from megatron.torch_profile.patching import PatchSet

FIRST_RUN = os.environ.get("SLURM_RESTART_COUNT", "0") == "0"
SECONDS_PER_STEP = float(os.environ.get("SECONDS_PER_STEP", "0")) * FIRST_RUN
SECONDS_PER_COMPRESSION = float(os.environ.get("SECONDS_PER_COMPRESSION", "0"))

forward_step, compress = pretrain_gpt.forward_step, writers.compress


def slow_forward_step(*args: Any) -> Any:
    time.sleep(SECONDS_PER_STEP)
    return forward_step(*args)


def slow_compress(raw: Path, *args: Any) -> Any:
    time.sleep(SECONDS_PER_COMPRESSION)
    return compress(raw, *args)


if __name__ == "__main__":
    megatron.torch_profile.install()
    PatchSet((megatron_names.COMPILED_HELPERS,)).apply()
    pretrain_gpt.forward_step = slow_forward_step
    writers.compress = slow_compress
    with cpu.training():
        pretrain_gpt.main()
