# SPDX-License-Identifier: Apache-2.0
"""Trainings that start with something of ours in the place of what a CPU has not."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "scripts" / "loops")]

import bridge_loop  # noqa: E402
import megatron_cells  # noqa: E402
import megatron_trainings  # noqa: E402


def test_forks_train_in_a_pipeline_but_those_with_flags_of_our_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        megatron_cells, "checked_out", lambda clone, branch, scratch: scratch / branch
    )
    (main, moe) = megatron_cells.forks("llm-jp/Megatron-LM", tmp_path, tmp_path)
    assert main.name == "fork llm-jp/Megatron-LM, main"
    assert main.more[-2:] == ("--pipeline-model-parallel-size", "2")
    assert moe.starter is None
    (old, *_) = megatron_cells.forks("okoge-kaz/Megatron-LM", tmp_path, tmp_path)
    assert old.starter == ROOT / "scripts" / "old_engines.py"
    assert old.more[-1] == "--use-mcore-models"


def test_the_loop_of_megatron_bridge_runs_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []

    def said(command: list[str], *given: object) -> tuple[int, str]:
        ran.append(command)
        return 1, "ValueError: no\n"

    monkeypatch.setattr(
        megatron_trainings.subprocess, "check_output", lambda *a, **b: "3.12.1 2.14.1 0.19.2 0.6.2"
    )
    monkeypatch.setattr(megatron_trainings, "said", said)
    name, found = megatron_trainings.bridged("python", tmp_path)
    assert name == "loop Megatron-Bridge 0.6.2, pretrain"
    assert found.versions == {"python": "3.12.1", "torch": "2.14.1", "megatron-core": "0.19.2"}
    assert ran[0][0] == "python"
    assert ran[0][-4:-1] == ["-m", "megatron.torch_profile", "--cpu"]
    assert ran[0][-1].endswith("/scripts/bridge_loop.py")


def test_megatrons_that_import_engines_whatever_the_model_have_stand_ins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []
    branches = ["core_r0.6.0", "core_r0.8.0", "main"]
    monkeypatch.setattr(megatron_cells, "_branches", lambda clone: branches)
    monkeypatch.setattr(
        megatron_cells, "checked_out", lambda clone, branch, scratch: scratch / branch
    )
    monkeypatch.setattr(megatron_trainings, "said", lambda command, *given: ran.append(command))
    options = SimpleNamespace(checkouts=tmp_path, only=None)
    for cell in megatron_cells.cells(options, tmp_path):
        if cell.name.startswith("checkout"):
            megatron_trainings.train_cell(cell, tmp_path, [])
    old, newer = ran[:2]
    entry = str(tmp_path / "core_r0.6.0" / "pretrain_gpt.py")
    assert old[old.index("--cpu") + 1 :][:2] == [str(ROOT / "scripts" / "old_engines.py"), entry]
    assert newer[newer.index("--cpu") + 1] == str(tmp_path / "core_r0.8.0" / "pretrain_gpt.py")


def test_the_stand_ins_for_old_engines_compute_what_those_compute() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import old_engines

    gradients = [torch.tensor([3.0, 0.0]), torch.tensor([[4.0]])]
    norm, of_each = old_engines.applied(old_engines.norm_of_all, None, [gradients], False)
    assert (norm.tolist(), of_each) == ([5.0], None)
    halves = [torch.zeros(2, dtype=torch.bfloat16), torch.zeros(1, 1)]
    old_engines.applied(old_engines.scale_all, None, [gradients, halves], 0.5)
    assert [one.tolist() for one in halves] == [[1.5, 0.0], [[2.0]]]
    norm = old_engines.Norm(hidden_size=2, eps=0.0, sequence_parallel=False)
    assert norm(torch.tensor([[1.0, 3.0]])).tolist() == [[-1.0, 1.0]]


def test_the_callback_of_megatron_bridge_is_the_one_of_the_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parent = types.ModuleType("megatron.bridge.training.callbacks")
    parent.Callback = type("Callback", (), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, parent.__name__, parent)
    made = bridge_loop.callback_of_the_page(bridge_loop.PAGE.read_text())
    assert type(made).__name__ == "TorchProfile"
    assert callable(made.on_train_step_start)


def test_training_with_rewards_has_rollouts_of_a_toy(monkeypatch: pytest.MonkeyPatch) -> None:
    import toy_rollouts

    types_of_megatron = types.ModuleType("megatron.rl.types")
    vars(types_of_megatron).update(RolloutGroup=SimpleNamespace, TokenRollout=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "megatron.rl.types", types_of_megatron)
    made, again = (toy_rollouts.rollouts(2, 3, 8, 64, seed=7) for _ in range(2))
    assert made == again
    assert made != toy_rollouts.rollouts(2, 3, 8, 64, seed=8)
    assert [len(group.rollouts) for group in made] == [3, 3]
    one = made[0].rollouts[0]
    even = [token for token in one.trajectory[0] if token % 2 == 0]
    assert one.reward == len(even) / 8
    assert one.generation_mask == [[False] * 4 + [True] * 4]
    assert len(one.logprobs[0]) == 4


@pytest.mark.parametrize(("ends", "passed"), [([0, 8], None), ([0, 4, 8], "packed")])
def test_one_sequence_alone_is_not_packed(ends: list[int], passed: str | None) -> None:
    import toy_rollouts

    packed = SimpleNamespace(cu_seqlens_q=ends)
    got = toy_rollouts.unpacked(
        lambda **given: given["packed_seq_params"], None, (), {"packed_seq_params": packed}
    )
    assert got is (packed if passed else None)


def test_losses_are_the_same_where_another_rank_writes_into_the_line() -> None:
    """Python writes the end of a line by itself where it buffers nothing, as under torchrun."""
    loop = (ROOT / "scripts" / "attached_loop.py").read_text()
    assert 'grad norm: {norm.item().hex()} |"' in loop
    alone = "iteration 1/4 | loss: 0x1.8p+1 | grad norm: 0x1.2p+0 |\n"
    mixed = alone.replace("\n", "[torch-profile plan] ranks: 0-1\n\n")
    assert megatron_trainings._losses(mixed) == megatron_trainings._losses(alone)
    assert megatron_trainings._losses(alone) == [("1", "0x1.8p+1", "0x1.2p+0")]
