# SPDX-License-Identifier: Apache-2.0
"""Run a script that trains with Megatron, with the --torch-profile flags in place.

    torchrun --nproc-per-node 8 -m megatron.torch_profile pretrain_gpt.py ARGS... --torch-profile
    python -m megatron.torch_profile --cpu pretrain_gpt.py ARGS... --torch-profile

The script runs as if Python had started it: its folder is first on the path, it is `__main__`,
and its arguments are its own.
"""

from __future__ import annotations

import megatron_torch_profile

if __name__ == "__main__":
    megatron_torch_profile.quiet()

import os
import re
import runpy
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import megatron.torch_profile
from megatron.torch_profile.hooks.command_line import HELP, help_text
from megatron.torch_profile.log import Slug, environment_rank, exit_with, warn
from megatron.torch_profile.patching import OLDEST_CORE, version_in
from megatron.torch_profile.plan import launchers
from megatron.torch_profile.record.unrecorded import why_nothing
from megatron.torch_trace.errors import UsageError

USAGE = """usage: python -m megatron.torch_profile [--cpu] (SCRIPT | -m MODULE) [ARGS...]
       python -m megatron.torch_profile --plan [RANKS] [SCRIPT] [ARGS...]

Run a script that trains with NVIDIA Megatron, with the --torch-profile flags
added to its arguments. In a launch script, write -m megatron.torch_profile
between torchrun's own arguments and the script:

    torchrun $DISTRIBUTED_ARGS -m megatron.torch_profile \\
        pretrain_gpt.py $ARGS --torch-profile

  --cpu     train without a GPU, over gloo
  --plan    start nothing: check the flags and the folder, and print for a
            launch of RANKS ranks what will be recorded and how large the
            traces will be; needs no GPU and no Megatron
  -m        run a module instead of a script
  -h        print this help
  --torch-profile-help
            print the help of the --torch-profile flags; the script's own
            --help has these flags among Megatron's

Exit status: the script's own; 2 if a flag is wrong, before anything is trained.
"""
_OURS = ("--cpu", "--plan", "-h", "--help", HELP)
_LOCAL_RANK = re.compile(r"--local[-_]rank(=\d+)?")


def main(argv: list[str]) -> None:
    """Run what the command line names; see the module's docstring."""
    cpu = False
    by_launcher: list[str] = []
    while argv and argv != [HELP] and (argv[0] in _OURS or _LOCAL_RANK.fullmatch(argv[0])):
        word = argv.pop(0)
        if word in ("-h", "--help"):
            print(USAGE)
            return
        if word == "--plan":
            _show_plan(argv)
            return
        if word == HELP:
            argv = [HELP]
        elif word == "--cpu":
            cpu = True
        else:
            # torch.distributed.launch and DeepSpeed put it before the script, as its first word.
            by_launcher += [word, *([] if "=" in word else argv[:1])]
            del argv[: "=" not in word]
    if HELP in argv:
        if environment_rank() == 0:
            print(help_text())
        return
    as_module = bool(argv) and argv[0] == "-m"
    target, arguments = argv[int(as_module) :][:1], argv[int(as_module) + 1 :]
    if not target:
        exit_with(UsageError(f"no script is given; {USAGE.splitlines()[0]}"))
    if not as_module:
        script = Path(target[0])
        if not script.is_file():
            exit_with(
                UsageError(
                    f"{script}: no such script; its flags come after its name "
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
        sys.argv = [target[0], *by_launcher, *arguments]
        status: Any = 0
        megatron_torch_profile.aloud()
        try:
            if as_module:
                runpy.run_module(target[0], run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(target[0], run_name="__main__")
        except SystemExit as ended:
            status = ended.code or 0
            raise
        finally:
            _say_why_nothing(status)


def _show_plan(words: list[str]) -> None:
    from megatron.torch_profile.hooks import preflight

    world_size = int(words.pop(0)) if words and words[0].isdigit() else None
    script = words[0] if words and words[0].endswith(".py") else None
    try:
        if world_size == 0:
            raise UsageError("--plan 0: must be 1 or more.")
        if script and not Path(script).is_file():
            raise UsageError(f"{script}: no such script.")
        preflight.show(words, world_size)
    except UsageError as error:
        exit_with(error)


def _say_why_nothing(status: Any) -> None:
    failed = isinstance(sys.exc_info()[1], Exception)
    if environment_rank() == 0 and not failed and (why := why_nothing(sys.argv[1:], status)):
        sys.stdout.flush()
        warn(Slug.RECORDED_NOTHING, "%s", why)


def _refuse_old_megatron() -> None:
    """Name a Megatron that hides namespace packages, which would fail as a missing module."""
    for folder in sys.path:
        package = Path(folder or ".") / "megatron"
        if (package / "__init__.py").is_file():
            oldest = ".".join(map(str, OLDEST_CORE))
            exit_with(
                UsageError(
                    f"{package} is an old Megatron (core {version_in(package / 'core')}, whose "
                    f"__init__.py hides this package); take it off PYTHONPATH and "
                    f"use core {oldest} or newer."
                )
            )


if __name__ == "__main__":
    main(sys.argv[1:])
