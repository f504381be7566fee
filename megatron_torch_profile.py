# SPDX-License-Identifier: Apache-2.0
"""Both programs, for an environment whose Megatron hides this package.

`megatron` is a namespace that several packages share, unless a Megatron with a file
`megatron/__init__.py` lies anywhere on the path: then Python looks into that Megatron only. This
module lies outside of the namespace, so Python always finds it.

    torch-trace ...                                         the command starts here
    python -m megatron_torch_profile pretrain_gpt.py ...    as `python -m megatron.torch_profile`
"""

from __future__ import annotations

# Nothing else here: until `quiet` is called, Ctrl-C prints a traceback of what is imported.
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def quiet() -> None:
    """From now on Ctrl-C ends this process without a word: it has not begun to work.

    A program calls it before its imports; who handles SIGINT otherwise, or not at all, stays.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def aloud() -> None:
    """Take `quiet` back: what runs now says itself what Ctrl-C means."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: object) -> NoReturn:
    os._exit(128 + number)


def open_namespace() -> None:
    """Make `megatron.torch_trace` and `megatron.torch_profile` importable; again is nothing."""
    from importlib.machinery import PathFinder
    from pathlib import Path
    from types import ModuleType

    ours = str(Path(__file__).absolute().parent / "megatron")
    package = sys.modules.get("megatron")
    if package is None:
        found = PathFinder.find_spec("megatron")
        if found is None or not found.has_location:
            return  # a namespace, or nothing but an editable install: Python joins the parts
        # Not the hiding one itself: it may import torch, or fail.
        package = sys.modules["megatron"] = ModuleType("megatron")
        package.__path__ = []
    if getattr(package, "__file__", None) or package.__spec__ is None:
        package.__path__ = [ours, *(path for path in package.__path__ if path != ours)]


def torch_trace() -> NoReturn:
    """Run `torch-trace`."""
    quiet()
    open_namespace()
    from megatron.torch_trace.commands import main

    main()


def torch_profile() -> None:
    """Run `python -m megatron.torch_profile`, which names a Megatron that is too old."""
    quiet()
    open_namespace()
    from megatron.torch_profile.__main__ import main

    main(sys.argv[1:])


if __name__ == "__main__":
    # By its name: what the recorder imports is this module, too, and no copy of it.
    from megatron_torch_profile import torch_profile as run

    run()
