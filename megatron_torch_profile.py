# SPDX-License-Identifier: Apache-2.0
"""Both programs, for an environment whose Megatron hides this package.

`megatron` is a namespace that several packages share, unless a Megatron with a file
`megatron/__init__.py` lies anywhere on the path: then Python looks into that Megatron only. This
module lies outside of the namespace, so Python always finds it.

    torch-trace ...                                         the command starts here
    python -m megatron_torch_profile pretrain_gpt.py ...    as `python -m megatron.torch_profile`
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import NoReturn

_OURS = str(Path(__file__).absolute().parent / "megatron")


def open_namespace() -> None:
    """Make `megatron.torch_trace` and `megatron.torch_profile` importable; again is nothing."""
    package = sys.modules.get("megatron")
    if package is None:
        found = PathFinder.find_spec("megatron")
        if found is None or not found.has_location:
            return  # a namespace, or nothing but an editable install: Python joins the parts
        # Not the hiding one itself: it may import torch, or fail.
        package = sys.modules["megatron"] = ModuleType("megatron")
        package.__path__ = []
    if getattr(package, "__file__", None) or package.__spec__ is None:
        package.__path__ = [_OURS, *(path for path in package.__path__ if path != _OURS)]


def torch_trace() -> NoReturn:
    """Run `torch-trace`."""
    open_namespace()
    from megatron.torch_trace.commands import main

    main()


def torch_profile() -> None:
    """Run `python -m megatron.torch_profile`, which names a Megatron that is too old."""
    open_namespace()
    from megatron.torch_profile.__main__ import main

    main(sys.argv[1:])


if __name__ == "__main__":
    torch_profile()
