# SPDX-License-Identifier: Apache-2.0
"""What megatron-core needs before one of its parts can be built: groups, seeds, a device."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch.distributed as dist

from megatron.torch_profile.component.config import Config
from megatron.torch_profile.cpu import training as on_cpu
from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.wording import counted


@contextmanager
def megatron(config: Config, device: str) -> Iterator[None]:
    """While open, parts of megatron-core can be built, of one rank or of those of torchrun.

    Raises:
        UsageError: it is not installed, or the ranks cannot be split as asked.
    """
    with warnings.catch_warnings(), ExitStack() as stack:
        warnings.simplefilter("ignore")  # one for each optional library that is not there
        try:
            from megatron.core import parallel_state
            from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
        except ImportError as error:
            raise UsageError(
                f"target {config.target}: needs megatron-core ({error}); install it, or name an "
                "import path of your own."
            ) from None
        alone = on_cpu.alone(os.environ)
        if device == "cpu":
            stack.enter_context(on_cpu.training("component"))
        if not dist.is_initialized():
            os.environ.update(alone)
            dist.init_process_group("nccl" if device == "cuda" else "gloo")
            stack.callback(_leave, alone)
        parallel = config.parallel
        world = dist.get_world_size()
        for name, size in (("tensor", parallel.tensor), ("context", parallel.context)):
            if world % size:
                raise UsageError(
                    f"parallel.{name}: {size}; must divide the {counted(world, 'rank')}."
                )
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=parallel.tensor,
            context_parallel_size=parallel.context,
            expert_model_parallel_size=parallel.expert,
        )
        stack.callback(parallel_state.destroy_model_parallel)
        model_parallel_cuda_manual_seed(config.seed)
        yield


def _leave(set_here: dict[str, str]) -> None:
    dist.destroy_process_group()
    for name in set_here:
        os.environ.pop(name, None)
