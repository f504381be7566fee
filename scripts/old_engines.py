# SPDX-License-Identifier: Apache-2.0
"""An entry point of megatron-core 0.6 or 0.7 on a CPU: these import Transformer Engine and Apex.

    python -m megatron.torch_profile --cpu scripts/old_engines.py pretrain_gpt.py ...

Both import them whatever the model. Of what they import a model of local layers calls five things;
these are torch's own here: two norms, Adam, and two operations on lists of gradients. All else of
both libraries is an empty class, and Megatron is its own.
"""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

VERSION = "0.5.0"
"""Of the stand-in for Transformer Engine: older than all that Megatron asks for."""


class Norm:
    """Transformer Engine's norm, as torch has it."""

    def __new__(cls, hidden_size: int, eps: float, **others: Any) -> Any:
        return torch.nn.LayerNorm(hidden_size, eps)


class FusedNorm:
    """Apex's norm, which Megatron calls by `apply`."""

    @staticmethod
    def forward(tensor: Any, weight: Any, bias: Any, shape: Any, eps: float) -> torch.Tensor:
        return torch.nn.functional.layer_norm(tensor, shape, weight, bias, eps)

    apply = forward


def norm_of_all(overflow: Any, lists: list[list[torch.Tensor]], each: bool) -> Any:
    """The 2-norm of all tensors of the first list, shape (1,), and no norm of each."""
    return torch.stack([one.norm() for one in lists[0]]).norm().reshape(1), None


def scale_all(overflow: Any, lists: list[list[torch.Tensor]], factor: float) -> None:
    """Write the tensors of the first list, times the factor, into those of the second."""
    for source, target in zip(*lists, strict=True):
        target.copy_(source * factor)


def applied(operation: Callable[..., Any], overflow: Any, lists: Any, *more: Any) -> Any:
    return operation(overflow, lists, *more)


def stand_ins() -> dict[str, dict[str, Any]]:
    """Module -> what Megatron takes from it."""
    layers = ("Linear", "LayerNormLinear", "DotProductAttention")
    empty = {name: type(name, (torch.nn.Module,), {}) for name in layers}
    return {
        "transformer_engine": {},
        "transformer_engine.pytorch": {"LayerNorm": Norm, **empty},
        "transformer_engine.common": {},
        "transformer_engine.common.recipe": {"DelayedScaling": type("DelayedScaling", (), {})},
        "apex": {},
        "apex.optimizers": {"FusedAdam": torch.optim.AdamW, "FusedSGD": torch.optim.SGD},
        "apex.multi_tensor_apply": {"multi_tensor_applier": applied},
        "apex.normalization": {},
        "apex.normalization.fused_layer_norm": {"FusedLayerNormAffineFunction": FusedNorm},
        "amp_C": {"multi_tensor_l2norm": norm_of_all, "multi_tensor_scale": scale_all},
    }


def put_in() -> None:
    """From now on the stand-ins are imported."""
    for name, names in stand_ins().items():
        module = ModuleType(name)
        vars(module).update(names)
        module.__spec__ = importlib.machinery.ModuleSpec(name, loader=None, is_package=True)
        module.__path__ = []
        sys.modules[name] = module
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], own, module)
    asked = importlib.metadata.version

    def version(name: str) -> str:
        return VERSION if name == "transformer-engine" else asked(name)

    importlib.metadata.version = version


def main() -> None:
    del sys.argv[0]
    put_in()
    # Its own imports are found beside it, as with `python pretrain_gpt.py`.
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
