# SPDX-License-Identifier: Apache-2.0
"""pretrain_gpt.py with `--delay-wgrad-compute` on a CPU: Megatron wants Transformer Engine for it.

    python -m megatron.torch_profile --cpu scripts/delayed_gradients.py --delay-wgrad-compute ...

Megatron's check of the flag is passed by, and the linear layers of its local layers keep their
weight gradients until `backward_dw`, as those of Transformer Engine do. All else is Megatron's own:
its schedule, its nodes, when it calls `backward_dw`. At the end it says how many were delayed.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import torch
from megatron.core.tensor_parallel import layers
from megatron.training import arguments

FLAG = "--delay-wgrad-compute"
_OF_LAYERS = ("qkv", "proj", "fc1", "fc2")
"""What Megatron calls the linear layers whose `backward_dw` it calls; the output layer is none."""
_done = 0


class _Delayed(torch.autograd.Function):
    """A product whose weight gradient is computed later.

    Args:
        tensor: input, shape (..., in).
        weight: shape (out, in); Megatron's DDP has given it its `main_grad`.
        kept: gets input and output gradient of each backward.
    """

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, weight: torch.Tensor, kept: list[Any]) -> Any:
        ctx.save_for_backward(tensor, weight)
        ctx.kept = kept
        return tensor @ weight.t()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        tensor, weight = ctx.saved_tensors
        ctx.kept.append((tensor, gradient))
        return gradient @ weight, None, None


def _forward(linear: Any) -> Any:
    kept: list[Any] = []
    linear.kept = kept

    def multiply(**given: Any) -> torch.Tensor:
        product: torch.Tensor = _Delayed.apply(given["input"], given["weight"], kept)
        return product if given["bias"] is None else product + given["bias"]

    return multiply


def _delayed(init: Any) -> Any:
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        if kwargs["config"].delay_wgrad_compute and kwargs.get("tp_comm_buffer_name") in _OF_LAYERS:
            self._forward_impl = _forward(self)

    return made


def _backward_dw(linear: Any) -> None:
    global _done
    with torch.no_grad():
        for tensor, gradient in linear.kept:
            flat = gradient.flatten(0, -2).t() @ tensor.flatten(0, -2)
            linear.weight.main_grad.add_(flat)
            _done += 1
    linear.kept.clear()


def main() -> None:
    checked, delays = arguments.validate_args, FLAG in sys.argv
    sys.argv = [word for word in sys.argv if word != FLAG]

    def validate(*given: Any, **named: Any) -> Any:
        result = checked(*given, **named)
        result.delay_wgrad_compute = delays
        return result

    arguments.validate_args = validate
    for kind in (layers.ColumnParallelLinear, layers.RowParallelLinear):
        kind.__init__ = _delayed(kind.__init__)
        kind.backward_dw = _backward_dw
    entry = Path(__file__).resolve().parents[1] / "pretrain_gpt.py"
    runpy.run_path(str(entry), run_name="__main__")
    print(f"delayed weight gradients: {_done}", flush=True)


if __name__ == "__main__":
    main()
