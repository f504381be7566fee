# SPDX-License-Identifier: Apache-2.0
"""From a case to its step, whoever makes the component."""

from __future__ import annotations

import torch

from megatron.torch_profile.component import ready
from megatron.torch_profile.component.component import Component, of_import_path
from megatron.torch_profile.component.config import Config
from megatron.torch_profile.component.ready.engine import LeftOutError
from megatron.torch_profile.component.step import Step
from megatron.torch_profile.component.variants import Case

__all__ = ["LeftOutError", "built_step"]


def built_step(case: Case, config: Config, device: str) -> Step:
    """The step of a case, with the same numbers in parameters and inputs each time.

    Raises:
        UsageError: it cannot be built.
        LeftOutError: this machine lacks what it is built from.
    """
    torch.manual_seed(config.seed)
    if case.target in ready.NAMES:
        component: Component = ready.build(case, config, device)
    else:
        component = of_import_path(case, config.inputs, device, config.seed, list(ready.NAMES))
    return Step(component, case, device)
