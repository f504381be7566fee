# SPDX-License-Identifier: Apache-2.0
"""What a builder of a ready component is given."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch

from megatron.torch_profile.component.config import Config, nearest
from megatron.torch_profile.component.variants import Case
from megatron.torch_trace.errors import UsageError


@dataclass
class ReadyCase:
    """A case of a ready component.

    Args:
        sizes: all of them, by name.
        own: names of arguments that are the component's own.
    """

    case: Case
    config: Config
    device: str
    sizes: dict[str, int]
    own: tuple[str, ...]

    @property
    def dtype(self) -> torch.dtype:
        """Of parameters and inputs."""
        found: torch.dtype = getattr(torch, self.case.dtype)
        return found

    @cached_property
    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.config.seed)

    def normal(self, *sizes: str | int, gradient: bool = True) -> torch.Tensor:
        """A tensor of these sizes, by name or number."""
        shape = [self.sizes[one] if isinstance(one, str) else one for one in sizes]
        made = torch.randn(shape, generator=self._generator).to(self.device, self.dtype)
        return made.requires_grad_(gradient)

    def below(self, most: int, *sizes: str) -> torch.Tensor:
        """Whole numbers from 0 on."""
        shape = [self.sizes[one] for one in sizes]
        return torch.randint(0, most, shape, generator=self._generator).to(self.device)

    def choice(self, name: str, known: tuple[str, ...]) -> str:
        """An argument of the component's own; the first one if it is not given.

        Raises:
            UsageError: it is none of those that are known.
        """
        value = self.case.arguments.get(name, known[0])
        if value not in known:
            raise UsageError(
                f"arguments.{name}: {value!r}; {self.case.target} knows {', '.join(known)}."
            )
        return str(value)

    def switch(self, name: str, default: bool) -> bool:
        """The same, true or false."""
        value = self.case.arguments.get(name, default)
        if not isinstance(value, bool):
            raise UsageError(f"arguments.{name}: {value!r}; must be true or false.")
        return value

    def others(self, *, known: list[str] | None = None) -> dict[str, Any]:
        """Arguments that are not the component's own.

        Args:
            known: which there may be.

        Raises:
            UsageError: there is one that is not known.
        """
        given = {k: v for k, v in self.case.arguments.items() if k not in self.own}
        names = known or []
        for name in given:
            if name not in names:
                raise UsageError(
                    f"arguments: {self.case.target} has no argument `{name}`"
                    f"{nearest(name, [*self.own, *names])}"
                )
        return given


def names_of(kind: type) -> list[str]:
    """Fields of a dataclass that can be given."""
    return [one.name for one in fields(kind) if one.init]
