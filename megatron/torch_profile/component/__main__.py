# SPDX-License-Identifier: Apache-2.0
"""`python -m megatron.torch_profile.component CONFIG.yaml|TARGET`."""

from __future__ import annotations

import megatron_torch_profile

if __name__ == "__main__":
    megatron_torch_profile.quiet()

import contextlib
import json
import shutil
import sys

import click

from megatron.torch_trace.errors import TorchTraceError

EPILOG = """\b
Ready components:
  rms_norm, layer_norm          torch's, operator by operator, Transformer Engine's
  attention                     unfused, or torch's fused kernels
  self_attention, mlp, moe, transformer_layer, pipeline_stage, rotary,
  cross_entropy, optimizer_step of megatron-core
\b
Exit status:
  0  success
  1  a --fail-if holds, or a component failed
  2  wrong usage
"""


@click.command("component", epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("what", metavar="CONFIG|TARGET")
@click.option(
    "--override",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="A value of the config, such as measure=50 or sizes.sequence=4096; may be given several "
    "times.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--fail-if",
    "conditions",
    multiple=True,
    metavar="CONDITION",
    help="Exit with status 1 if it surely holds: 'compiled > 1.0x eager', 'eager > 120us'; may be "
    "given several times.",
)
def command(
    what: str, overrides: tuple[str, ...], as_json: bool, conditions: tuple[str, ...]
) -> None:
    """Measure one component instead of a training run, in variants that are compared.

    \b
    python -m megatron.torch_profile.component norm.yaml --override sizes.hidden=4096
    python -m megatron.torch_profile.component my.module:function --override measure=50
    torchrun --nproc-per-node 2 -m megatron.torch_profile.component mlp.yaml

    CONFIG is a YAML or JSON file; TARGET a ready component, package.module:name or file.py:name,
    measured as it is.
    """
    from megatron.torch_profile.component.answer import conditions as fail_if
    from megatron.torch_profile.component.answer.document import document
    from megatron.torch_profile.component.answer.kept import keep
    from megatron.torch_profile.component.answer.text import render
    from megatron.torch_profile.component.config import read
    from megatron.torch_profile.component.run import run
    from megatron.torch_profile.component.variants import cases
    from megatron.torch_profile.log import environment_rank

    config = read(what, overrides)
    parsed = [fail_if.parse(one, cases(config)) for one in conditions]
    # What a component prints is no part of the answer.
    with contextlib.redirect_stdout(sys.stderr):
        answer = run(config)
    if environment_rank() == 0:
        keep(answer)
    verdicts = [fail_if.judge(one, answer) for one in parsed]
    if environment_rank() == 0:
        if as_json:
            click.echo(json.dumps(document(answer, verdicts), allow_nan=False))
        else:
            width = shutil.get_terminal_size((100, 24)).columns
            click.echo(render(answer, width=width), nl=False)
        for one in verdicts:
            if one.holds:
                click.echo(f"--fail-if '{one.condition.text}' holds: {one.told}.", err=True)
    if any(one.holds for one in verdicts) or any(
        one.failure and not one.left_out for one in answer.results
    ):
        raise SystemExit(TorchTraceError.exit_status)


def main() -> None:
    """Run the command; a user's mistake is one sentence and an exit status."""
    from megatron.torch_profile.log import exit_with

    megatron_torch_profile.aloud()
    try:
        command.main(standalone_mode=False)
    except click.exceptions.NoSuchOption as error:
        _wrong_usage(error.format_message())
    except click.ClickException as error:
        _wrong_usage(error.format_message())
    except TorchTraceError as error:
        exit_with(error)
    except (KeyboardInterrupt, click.Abort):
        raise SystemExit(130) from None


def _wrong_usage(said: str) -> None:
    from megatron.torch_profile.log import exit_with
    from megatron.torch_trace.errors import UsageError

    exit_with(UsageError(f"{said.rstrip('.')}; --help shows how to call it."))


if __name__ == "__main__":
    main()
