# SPDX-License-Identifier: Apache-2.0
"""One step of an optimizer over parameters like those of MLPs, with gradients that stay."""

from __future__ import annotations

from typing import Any

import torch

from megatron.torch_profile.component.component import Component
from megatron.torch_profile.component.ready.ready_case import ReadyCase

_OPTIMIZERS = ("megatron", "adam", "adam_foreach", "adam_fused", "sgd")


def optimizer_step(ready: ReadyCase) -> Component:
    """Megatron's optimizer of this dtype, with master weights in fp32 below it, or torch's Adam."""
    ready.others()
    chosen = ready.choice("optimizer", _OPTIMIZERS)
    parameters = _parameters(ready)
    optimizer = _torchs(chosen, parameters) if chosen != "megatron" else None
    call = optimizer.step if optimizer is not None else _megatrons(ready, parameters).step
    return Component(lambda: _without_result(call()), whole_step=True)


def _parameters(ready: ReadyCase) -> list[torch.nn.Parameter]:
    found = []
    for _ in range(ready.sizes["layers"]):
        for shape in (("ffn", "hidden"), ("hidden", "ffn")):
            one = torch.nn.Parameter(ready.normal(*shape, gradient=False))
            one.grad = ready.normal(*shape, gradient=False)
            found.append(one)
    return found


def _torchs(name: str, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=1e-6)
    kind = {"adam_foreach": {"foreach": True}, "adam_fused": {"fused": True}}
    return torch.optim.AdamW(parameters, lr=1e-6, **kind.get(name, {"foreach": False}))


def _megatrons(ready: ReadyCase, parameters: list[torch.nn.Parameter]) -> Any:
    from megatron.core.optimizer.optimizer import (
        Float16OptimizerWithFloat16Params,
        FP32Optimizer,
    )
    from megatron.core.optimizer.optimizer_config import OptimizerConfig

    config = OptimizerConfig(
        optimizer="adam",
        lr=1e-6,
        bf16=ready.dtype is torch.bfloat16,
        fp16=ready.dtype is torch.float16,
        params_dtype=ready.dtype,
        clip_grad=0.0,
    )
    below = torch.optim.AdamW(parameters, lr=1e-6, foreach=True)

    def first(optimizer: Any, config: Any = None) -> None:
        """States are there from the first step on."""

    if ready.dtype is torch.float32:
        made = FP32Optimizer(below, config, first)
    else:
        made = Float16OptimizerWithFloat16Params(below, config, None, first)
    for one in parameters:  # where Megatron's own gradient buffers would be
        one.main_grad = one.grad
    return made


def _without_result(result: Any) -> None:
    return None
