# SPDX-License-Identifier: Apache-2.0
"""Megatron's arguments without a GPU: what is switched off, named, or refused."""

from __future__ import annotations

import enum
import os
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from megatron.torch_profile.cpu import megatron_names
from megatron.torch_profile.cpu import training as cpu


class Backend(enum.Enum):
    """As Megatron's AttnBackend from core 0.9 on."""

    auto = 1
    unfused = 2


def test_arguments_are_adjusted_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    args = Namespace(
        distributed_backend="nccl", transformer_impl="local", attention_backend=Backend.auto
    )
    cpu.adjust_arguments(args)
    assert vars(args) == {
        "distributed_backend": "gloo",
        "transformer_impl": "local",
        "attention_backend": Backend.unfused,
    }
    changed = "distributed_backend gloo, attention_backend unfused"
    assert capsys.readouterr().out == f"[torch-profile cpu-flags] on the CPU: {changed}\n"


def test_arguments_parsed_again_are_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        cpu.adjust_arguments(Namespace(transformer_impl="transformer_engine"))
    assert capsys.readouterr().out.count("\n") == 1


def test_arguments_that_fit_are_left_alone_in_silence(capsys: pytest.CaptureFixture[str]) -> None:
    args = Namespace(distributed_backend="gloo", attention_backend="unfused")
    cpu.adjust_arguments(args)
    assert vars(args) == {"distributed_backend": "gloo", "attention_backend": "unfused"}
    assert capsys.readouterr().out == ""


def test_what_ordinary_flags_ask_of_a_gpu_is_switched_off_on_the_same_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NVTE_FLASH_ATTN", "1")
    args = Namespace(
        sequence_parallel=True,
        apply_layernorm_1p=True,
        cuda_graph_impl="local",
        log_memory_to_tensorboard=True,
        async_save=True,
        fp8=None,
        moe_token_dispatcher_type="flex",
        overlap_moe_expert_parallel_comm=True,
        num_experts=8,
        context_parallel_size=1,
    )
    with cpu.training():
        assert "NVTE_FLASH_ATTN" not in os.environ
        cpu.adjust_arguments(args)
    assert vars(args) == {
        "sequence_parallel": False,
        "apply_layernorm_1p": False,
        "cuda_graph_impl": "none",
        "log_memory_to_tensorboard": False,
        "async_save": False,
        "fp8": None,
        "moe_token_dispatcher_type": "allgather",
        "overlap_moe_expert_parallel_comm": False,
        "num_experts": 8,
        "context_parallel_size": 1,
    }
    assert capsys.readouterr().out.splitlines()[1:] == [
        "[torch-profile cpu-flags] on the CPU: sequence_parallel False, apply_layernorm_1p False, "
        "cuda_graph_impl none, log_memory_to_tensorboard False, async_save False, "
        "moe_token_dispatcher_type allgather, overlap_moe_expert_parallel_comm False, "
        "without NVTE_FLASH_ATTN"
    ]
    assert os.environ["NVTE_FLASH_ATTN"] == "1"


def test_experts_keep_the_dispatcher_that_a_cpu_has_and_what_overlaps_with_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    args = Namespace(
        moe_token_dispatcher_type="alltoall", overlap_moe_expert_parallel_comm=True, num_experts=8
    )
    before = dict(vars(args))
    cpu.adjust_arguments(args)
    assert vars(args) == before
    assert capsys.readouterr().out == ""


def test_the_local_attention_that_layers_of_bert_insist_on_is_kept() -> None:
    both = enum.Enum("AttnBackend", ["auto", "unfused", "local"])
    args = Namespace(attention_backend=both["local"])
    cpu.adjust_arguments(args)
    assert args.attention_backend is both["local"]


def test_experts_with_tensor_parallelism_keep_the_sequence_parallelism_that_megatron_wants() -> (
    None
):
    args = Namespace(num_experts=4, tensor_model_parallel_size=2, sequence_parallel=True)
    cpu.adjust_arguments(args)
    assert args.sequence_parallel


@pytest.mark.parametrize("parallel", [False, True])
def test_a_norm_of_a_part_of_the_sequence_is_marked_for_megatron(parallel: bool) -> None:
    def norm(kind: Any, config: Any, size: int) -> Any:
        assert not config.sequence_parallel
        return torch.nn.LayerNorm(size)

    config = Namespace(sequence_parallel=parallel)
    wrapper = next(
        p.wrapper for p in megatron_names.PATCHES if p.name == "WrappedTorchNorm.__new__"
    )
    for args, kwargs in (((object, config, 4), {}), ((object,), {"config": config, "size": 4})):
        made = wrapper(norm, None, args, kwargs)
        marks = [getattr(p, "sequence_parallel", False) for p in made.parameters()]
        assert marks == [parallel] * 2
    assert config.sequence_parallel is parallel


def test_tensor_parallelism_has_the_environment_that_old_megatrons_insist_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    with cpu.training():
        cpu.adjust_arguments(Namespace(tensor_model_parallel_size=2))
        assert os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in os.environ


def test_a_router_that_asks_for_transformer_engine_is_told_that_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    utils: Any = ModuleType("moe_utils")
    exec("def gate(x):\n    return x if te_general_gemm is None else None", utils.__dict__)
    monkeypatch.setitem(sys.modules, "moe_utils", utils)
    wrapper = next(p.wrapper for p in megatron_names.PATCHES if p.name == "router_gating_linear")
    assert wrapper(utils.gate, None, (3,), {}) == 3


def test_a_dense_model_hears_nothing_of_dispatchers(capsys: pytest.CaptureFixture[str]) -> None:
    args = Namespace(moe_token_dispatcher_type="alltoall", num_experts=None)
    cpu.adjust_arguments(args)
    assert args.moe_token_dispatcher_type == "alltoall"
    assert capsys.readouterr().out == ""


def test_context_parallelism_is_refused_in_one_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        cpu.adjust_arguments(Namespace(context_parallel_size=2))
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "torch-profile: error: --context-parallel-size 2: this Megatron's attention needs "
        "Transformer Engine for it, and there is none on the CPU; leave the flag out with --cpu.\n"
    )


def test_context_parallelism_stays_where_megatrons_own_attention_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attention = tmp_path / "transformer" / "dot_product_attention_context_parallel.py"
    attention.parent.mkdir()
    attention.touch()
    core = Namespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(megatron_names, "find_spec", lambda name: core)
    args = Namespace(context_parallel_size=2)
    cpu.adjust_arguments(args)
    assert args.context_parallel_size == 2
