# SPDX-License-Identifier: Apache-2.0
"""pretrain_gpt.py made slow, so that what befalls a job finds a window open and a trace unwritten.

SECONDS_PER_STEP: what a micro-batch takes, in the job's first run; a requeued one is not slow.
STAYS_AFTER: micro-batches after which the first run stays where it is, until a signal ends it.
SECONDS_PER_COMPRESSION: what lies between a trace's text and its compressed file. That the text is
whole is told by a file beside the logs, `rank-0.text`.

Forty ranks of these jobs import what they never call: nothing is compiled on a CPU, no job has W&B
or a tokenizer of Hugging Face's. That is left out, as where it is not installed.
"""

from __future__ import annotations

import itertools
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
from megatron.torch_profile.export import ending_thread
from megatron.torch_profile.export.trace_export import Export
from megatron.torch_profile.patching import PatchSet

FIRST_RUN = os.environ.get("SLURM_RESTART_COUNT", "0") == "0"
SECONDS_PER_STEP = float(os.environ.get("SECONDS_PER_STEP", "0")) * FIRST_RUN
SECONDS_PER_COMPRESSION = float(os.environ.get("SECONDS_PER_COMPRESSION", "0"))
STAYS_AFTER = int(os.environ.get("STAYS_AFTER", "0")) * FIRST_RUN

forward_step, compressing = pretrain_gpt.forward_step, ending_thread.compressing
calls = itertools.count(1)


def slow_forward_step(*args: Any) -> Any:
    time.sleep(SECONDS_PER_STEP)
    if 0 < STAYS_AFTER < next(calls):
        from megatron.training.global_vars import get_signal_handler

        while not get_signal_handler()._signal_received:
            time.sleep(0.1)
    return forward_step(*args)


def slow_compressing(export: Export, **how: bool) -> Any:
    if SECONDS_PER_COMPRESSION:
        (Path(os.environ["OUTPUT"]) / f"rank-{export.rank}.text").touch()
    time.sleep(SECONDS_PER_COMPRESSION)
    return compressing(export, **how)


if __name__ == "__main__":
    megatron.torch_profile.install()
    PatchSet((megatron_names.COMPILED_HELPERS,)).apply()
    pretrain_gpt.forward_step = slow_forward_step
    ending_thread.compressing = slow_compressing
    with cpu.training():
        pretrain_gpt.main()
