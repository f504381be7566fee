# SPDX-License-Identifier: Apache-2.0
"""Names of other packages wrapped in place, when they are imported, and put back.

Names are wrapped as attributes of the module that looks them up when it calls them, when that
module has been imported (now or later), and put back by `remove`. A wrapper passes arguments and
results through untouched: signatures drift with the version, so nothing here counts them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import wrapt

from megatron.torch_profile.log import exit_with
from megatron.torch_trace.errors import UsageError

Wrapper = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]

OLDEST_CORE = (0, 6)
"""Before, `megatron` was no namespace package and the training loop lay elsewhere."""


@dataclass(frozen=True, slots=True)
class Patch:
    """One wrapped name.

    Args:
        module: where Megatron looks the name up.
        name: attribute of the module, dotted for a method.
        wrapper: called in its place, in wrapt's form (wrapped, instance, args, kwargs).
        since: first core version that has the name; None where every supported one has it.
    """

    module: str
    name: str
    wrapper: Wrapper
    since: tuple[int, int] | None = None


class PatchSet:
    """Applies a list of patches to modules that are imported now or later, and takes them back.

    Args:
        patches: what to wrap.
    """

    def __init__(self, patches: tuple[Patch, ...]) -> None:
        self._patches = patches
        self._hooked: set[str] = set()
        self._wrapped: list[tuple[Any, str, Any]] = []
        self.active = False

    def apply(self) -> None:
        """Wrap; a second call changes nothing."""
        if self.active:
            return
        self.active = True
        for module in dict.fromkeys(patch.module for patch in self._patches):
            if module not in self._hooked:
                self._hooked.add(module)
                # Runs at once if the module is there. wrapt's hooks cannot be taken back, so they
                # ask whether the set is still active.
                wrapt.register_post_import_hook(self._wrap, module)
            elif module in sys.modules:
                self._wrap(sys.modules[module])

    def remove(self) -> None:
        """Put every original back; a second call changes nothing."""
        self.active = False
        while self._wrapped:
            owner, attribute, wrapper = self._wrapped.pop()
            # Somebody may have wrapped ours since: theirs stays, and ours passes everything on.
            if vars(owner).get(attribute) is wrapper:
                setattr(owner, attribute, wrapper.__wrapped__)

    def _wrap(self, module: Any) -> None:
        if not self.active:
            return
        for patch in self._patches:
            if patch.module != module.__name__:
                continue
            try:
                owner, attribute, original = wrapt.resolve_path(module, patch.name)
            except AttributeError:
                if patch.since is None:
                    refuse_old_megatron(f"{patch.module} has no {patch.name}")
                continue
            wrapper = wrapt.FunctionWrapper(original, patch.wrapper, enabled=self._is_active)
            setattr(owner, attribute, wrapper)
            self._wrapped.append((owner, attribute, wrapper))

    def _is_active(self) -> bool:
        return self.active


def refuse_old_megatron(reason: str) -> None:
    """End with a sentence if the Megatron at hand is older than the oldest that can be patched.

    Raises:
        SystemExit: always; status 2.
    """
    oldest = ".".join(map(str, OLDEST_CORE))
    exit_with(
        UsageError(f"needs Megatron core {oldest} or newer and found {_found_version()}: {reason}.")
    )


def version_in(core: Path) -> str:
    """The version of the Megatron whose folder `megatron/core` this is, without importing it."""
    try:
        source = (core / "package_info.py").read_text()
    except OSError:
        return "of unknown version"
    numbers = dict(re.findall(r"^(MAJOR|MINOR|PATCH)\s*=\s*(\d+)", source, re.MULTILINE))
    return ".".join(numbers.get(part, "?") for part in ("MAJOR", "MINOR", "PATCH"))


def _found_version() -> str:
    spec = find_spec("megatron.core")
    folders = list(spec.submodule_search_locations or []) if spec else []
    return version_in(Path(folders[0])) if folders else "none"
