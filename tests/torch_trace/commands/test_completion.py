# SPDX-License-Identifier: Apache-2.0
"""What the Tab key completes in bash and zsh."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import CompletionItem, ShellComplete
from command_line import MAIN

from megatron.torch_trace.commands import SUBCOMMANDS, cli

ROOT = Path(__file__).parents[3]
SCRIPTS = re.findall(
    r'^ {4}eval "\$\((_TORCH_TRACE_COMPLETE=(\w+)_source) torch-trace\)"$',
    (ROOT / "docs" / "tools.md").read_text(),
    re.MULTILINE,
)


def completed(*words: str) -> list[CompletionItem]:
    """What may stand for the last word."""
    shell = ShellComplete(cli, {}, "torch-trace", "_TORCH_TRACE_COMPLETE")
    return shell.get_completions(list(words[:-1]), words[-1])


def test_commands_options_and_their_values_are_completed() -> None:
    assert [one.value for one in completed("")] == list(SUBCOMMANDS)
    assert [one.value for one in completed("sq")] == ["sql"]
    assert [one.value for one in completed("sql", "--fo")] == ["--format"]
    assert [one.value for one in completed("sql", "--format", "")] == ["table", "csv", "json"]


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_arguments_and_output_are_names_of_files(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    first = next(one for one in command.params if isinstance(one, click.Argument))
    assert [(one.type, one.value) for one in completed(name, "iter")] == [("file", "iter")], first
    if any("--output" in one.opts for one in command.params):
        assert [one.type for one in completed(name, "--output", "x")] == ["file"]


@pytest.mark.parametrize(("variable", "shell"), SCRIPTS)
def test_the_lines_of_the_document_work_in_the_shell(
    tmp_path: Path, variable: str, shell: str
) -> None:
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    program = tmp_path / "torch-trace"
    program.write_text(f"#!/bin/sh\nexec {MAIN[0]} -c '{MAIN[2]}' \"$@\"\n")
    program.chmod(0o755)
    # In bash the function is called as Tab calls it; in zsh its completion needs a terminal.
    ask = "COMP_WORDS=(torch-trace sql --fo); COMP_CWORD=2; _torch_trace_completion torch-trace; "
    shown = f'{ask} echo "${{COMPREPLY[@]}}"'
    ask = shown if shell == "bash" else "whence -w _torch_trace_completion"
    start = "" if shell == "bash" else "autoload -U compinit; compinit -u; "
    script = f'{start}PATH={tmp_path}:$PATH; eval "$({variable} torch-trace)"; {ask}'
    done = subprocess.run(
        [shell, "-c", script],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), "HOME": str(tmp_path)},
    )
    shown = {"bash": "--format", "zsh": "_torch_trace_completion: function"}[shell]
    assert (done.stdout.strip(), done.stderr) == (shown, "")


def test_the_document_has_a_line_for_each_shell() -> None:
    assert [shell for _, shell in SCRIPTS] == ["bash", "zsh"]
