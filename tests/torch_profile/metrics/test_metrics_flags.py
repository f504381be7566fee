# SPDX-License-Identifier: Apache-2.0
"""Flags about numbers of the run: ours where Megatron has none, Megatron's where it has."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import fields
from types import SimpleNamespace

import pytest

from megatron.torch_profile.hooks import arguments
from megatron.torch_profile.metrics_config import MetricsConfig


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    arguments._parsed_metrics = MetricsConfig()


def megatron_parser() -> argparse.ArgumentParser:
    """Ours are added in the middle of it; some of Megatron's own follow."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--train-iters", type=int, default=100)
    arguments.add_group(parser)
    parser.add_argument("--log-timers-to-tensorboard", action="store_true", help="Megatron's.")
    return parser


def parse(line: str, parser: argparse.ArgumentParser | None = None) -> argparse.Namespace:
    return (parser or megatron_parser()).parse_args(line.split())


def test_the_forks_flag_and_upstreams_both_mean_timers() -> None:
    assert arguments.metrics_of(parse("--log-timers-to-wandb")) == MetricsConfig(
        log_timers_to_wandb=True
    )
    assert arguments.metrics_of(parse("--log-timers-to-tensorboard")) == MetricsConfig(
        log_timers_to_tensorboard=True
    )
    for flag in ("--log-timers-to-wandb", "--log-timers-to-tensorboard"):
        assert arguments.metrics_of(parse(flag)).timers


def test_without_ours_the_namespace_is_megatrons() -> None:
    assert vars(parse("")) == {"train_iters": 100, "log_timers_to_tensorboard": False}
    assert not arguments.metrics_of(parse("")).wanted


def test_a_flag_that_megatron_defines_later_is_not_redefined() -> None:
    parser = megatron_parser()
    parser.add_argument("--log-memory-interval", type=int, default=None)
    parser.add_argument("--log-timers-to-wandb", action="store_true", help="Somebody's.")
    args = parse("--log-timers-to-wandb", parser)
    assert args.log_memory_interval is None, "Megatron's own stay, whatever they hold"
    assert arguments.metrics_of(args) == MetricsConfig(log_timers_to_wandb=True)
    assert parser._option_string_actions["--log-timers-to-wandb"].help == "Somebody's."


def test_parsing_twice_adds_once() -> None:
    parser = megatron_parser()
    for _ in range(2):
        args = parse("--log-gpu-stats-interval 0.5 --log-memory-interval 20", parser)
        assert arguments.metrics_of(args) == MetricsConfig(
            log_gpu_stats_interval=0.5, log_memory_interval=20
        )


def test_help_lists_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--help")
    text = capsys.readouterr().out
    assert "Megatron's." in text
    for field in fields(MetricsConfig):
        assert text.count(f"  --{field.name.replace('_', '-')}") == 1


@pytest.mark.parametrize("flag", ["--log-gpu-stats-interval", "--log-memory-interval"])
def test_an_interval_is_more_than_nothing(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        parse(f"{flag} 0")
    assert exit_.value.code == 2
    assert capsys.readouterr().err.startswith(f"torch-profile: error: {flag} 0")


def test_a_yaml_file_that_replaces_the_namespace_keeps_the_command_lines_flags() -> None:
    parse("--log-timers-to-wandb")
    yaml = SimpleNamespace(log_gpu_stats_interval=2.0)
    assert arguments.metrics_of(yaml) == MetricsConfig(
        log_timers_to_wandb=True, log_gpu_stats_interval=2.0
    )
