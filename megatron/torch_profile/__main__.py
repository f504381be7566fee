# SPDX-License-Identifier: Apache-2.0
"""Run a script that trains with Megatron, with the --torch-profile flags in place.

    torchrun --nproc-per-node 8 -m megatron.torch_profile pretrain_gpt.py ARGS... --torch-profile
    python -m megatron.torch_profile --cpu pretrain_gpt.py ARGS... --torch-profile

The script runs as if Python had started it: its folder is first on the path, it is `__main__`,
and its arguments are its own.
"""

from __future__ import annotations

import os
import runpy
import sys
from contextlib import ExitStack
from pathlib import Path

import megatron.torch_profile
from megatron.torch_profile.log import exit_with
from megatron.torch_profile.patching import OLDEST_CORE, version_in
from megatron.torch_profile.plan import launchers
from megatron.torch_trace.errors import UsageError

USAGE = """usage: python -m megatron.torch_profile [--cpu] (SCRIPT | -m MODULE) [ARGS...]

Run a script that trains with NVIDIA Megatron, with --torch-profile flags added to its arguments.
Add it to a launch script after torchrun's own arguments:

    torchrun $DISTRIBUTED_ARGS -m megatron.torch_profile pretrain_gpt.py $ARGS --torch-profile

  --cpu     train without a GPU, over gloo
  -m        run a module instead of a script
  -h        this help; the flags themselves are in the script's own --help
"""


def main(argv: list[str]) -> None:
    """Run what the command line names; see the module's docstring."""
    cpu = False
    while argv and argv[0] in ("--cpu", "-h", "--help"):
        if argv.pop(0) != "--cpu":
            print(USAGE)
            return
        cpu = True
    as_module = bool(argv) and argv[0] == "-m"
    target, arguments = argv[int(as_module) :][:1], argv[int(as_module) + 1 :]
    if not target:
        exit_with(UsageError(f"no script given; {USAGE.splitlines()[0]}"))
    if not as_module:
        script = Path(target[0])
        if not script.is_file():
            exit_with(
                UsageError(
                    f"{script}: no such script; flags of its own come after it "
                    "(python -m megatron.torch_profile [--cpu] SCRIPT ARGS...)."
                )
            )
        # In front, as Python does; the rest stays, because this package may lie there.
        sys.path.insert(0, str(script.parent.absolute()))
    _refuse_old_megatron()
    try:
        os.environ.update(launchers.rank_environment(os.environ))
    except UsageError as error:
        exit_with(error)
    megatron.torch_profile.install()
    with ExitStack() as stack:
        if cpu:
            from megatron.torch_profile.cpu import training as on_cpu

            os.environ.update(on_cpu.alone(os.environ))
            stack.enter_context(on_cpu.training())
        sys.argv = [target[0], *arguments]
        if as_module:
            runpy.run_module(target[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(target[0], run_name="__main__")


def _refuse_old_megatron() -> None:
    """Name a Megatron that hides namespace packages, which would fail as a missing module."""
    for folder in sys.path:
        package = Path(folder or ".") / "megatron"
        if (package / "__init__.py").is_file():
            oldest = ".".join(map(str, OLDEST_CORE))
            exit_with(
                UsageError(
                    f"{package} is an old Megatron (core {version_in(package / 'core')}, whose "
                    f"__init__.py hides this package); needs core {oldest} or newer, take the old "
                    "one off PYTHONPATH."
                )
            )


if __name__ == "__main__":
    main(sys.argv[1:])
