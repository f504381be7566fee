# SPDX-License-Identifier: Apache-2.0
"""docs/compatibility.md holds what was run, and nothing else."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import compatibility  # noqa: E402
import compatibility_results  # noqa: E402
import launch_scripts  # noqa: E402
import megatron_trainings  # noqa: E402
import read_side  # noqa: E402


def test_the_page_is_what_the_results_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = compatibility_results.read()
    monkeypatch.setattr(compatibility_results, "PAGE", tmp_path / "page.md")
    compatibility_results.write_page(results)
    assert (tmp_path / "page.md").read_text() == (ROOT / "docs" / "compatibility.md").read_text()
    assert results
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", one.date) for one in results.values())


def test_every_kind_of_cell_has_a_table() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text()
    results = json.loads((ROOT / "docs" / "compatibility.json").read_text())
    for name in results:
        assert f"\n| {name.partition(' ')[2]} |" in page, name


def test_the_last_error_is_told_without_folders_of_this_machine() -> None:
    output = "Traceback\n[rank0]: ValueError: no /a/folder/of/mine/train.py here\nmore\n"
    assert compatibility_results.last_error(output) == "ValueError: no train.py here"
    assert compatibility_results.last_error("AssertionError\n=====\n") == "AssertionError"
    assert compatibility_results.last_error("it ended\n=====\n \n") == "it ended"
    assert compatibility_results.last_error("\n") == "nothing was said"


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ('{"a": 1, "b": 0.1, "c": "x"}', True),
        ('{"a": 1, "b": 0.10000000000000002, "c": "x"}', True),
        ('{"a": 1, "b": 0.11, "c": "x"}', False),
        ('{"a": 2, "b": 0.1, "c": "x"}', False),
        ('{"a": 1, "b": 0.1, "c": "y"}', False),
    ],
)
def test_answers_are_the_same_but_for_how_python_adds_fractions(other: str, same: bool) -> None:
    assert read_side.same('{"a": 1, "b": 0.1, "c": "x"}', other) is same


def test_cells_are_the_wheels_that_are_there_and_flags_with_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("0.17.0", "0.19.2", "hta"):
        (tmp_path / ".wheels" / name).mkdir(parents=True)
    monkeypatch.setattr(megatron_trainings, "ROOT", tmp_path)
    options = SimpleNamespace(checkouts=None, only=None)
    found = [cell.name for cell in megatron_trainings.cells(options, tmp_path)]
    assert found[:2] == ["wheel 0.17.0", "wheel 0.19.2"]
    assert found[2] == "feature `--mtp-num-layers 1 --position-embedding-type rope`, 1 rank"
    assert all(name.startswith("feature ") for name in found[2:])


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        (
            "torchrun ${ARGS[@]} pretrain_gpt.py \\\n    $MORE\n",
            "torchrun ${ARGS[@]} -m megatron.torch_profile pretrain_gpt.py \\\n    $MORE\n",
        ),
        (
            'torchrun $ARGS \\\n    "$PRETRAIN_SCRIPT_PATH" \\\n    $MORE\n',
            "torchrun $ARGS \\\n    -m megatron.torch_profile "
            '"$PRETRAIN_SCRIPT_PATH" \\\n    $MORE\n',
        ),
        (
            'srun -l python -m torch.distributed.run "${A[@]}" /my-own/pretrain_gpt.py $MORE\n',
            'srun -l python -m torch.distributed.run "${A[@]}" '
            "-m megatron.torch_profile /my-own/pretrain_gpt.py $MORE\n",
        ),
    ],
)
def test_a_launch_script_gets_our_word_before_its_training_script(
    command: str, wanted: str
) -> None:
    before = "# torchrun pretrain_gpt.py\nPRETRAIN_SCRIPT_PATH=pretrain_gpt.py\n"
    assert launch_scripts.edited(before + command) == before + wanted


def test_a_launch_script_that_starts_no_training_is_refused() -> None:
    with pytest.raises(ValueError, match="no command starts a training script"):
        launch_scripts.edited("echo pretrain_gpt.py\n")


def test_a_launch_script_keeps_its_flags_but_those_of_gpus_and_files() -> None:
    given = ["--swiglu", "--data-path", "0.5", "one", "--num-experts", "64", "--bf16", "--lr", "1"]
    found = launch_scripts.reduced(given, ["--global-batch-size", "4"])
    assert found[:5] == ["--swiglu", "--num-experts", "64", "--lr", "1"]
    assert found[-5:] == ["--num-experts", "4", "--mock-data", "--global-batch-size", "4"]
    assert "--kv-channels" not in found


def test_a_training_that_fails_without_our_flags_is_not_judged(tmp_path: Path) -> None:
    def train(folder: Path, ours: list[str]) -> tuple[int, str]:
        assert not ours
        return 1, "ImportError: Transformer Engine is not there"

    found = megatron_trainings.run(train, tmp_path)
    assert (found.works, found.judged, found.found) == (
        False,
        False,
        "without --torch-profile it already ends with status 1: "
        "ImportError: Transformer Engine is not there",
    )


def test_a_training_that_fails_with_our_flags_alone_fails(tmp_path: Path) -> None:
    found = megatron_trainings.run(
        lambda folder, ours: (3 * bool(ours), "ValueError: no"), tmp_path
    )
    assert (found.works, found.judged) == (False, True)
    assert found.found == "with --torch-profile it ends with status 3: ValueError: no"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--launch NVIDIA/Megatron=.", "NVIDIA/Megatron=.: no repository of NVIDIA/Megatron-LM, "),
        ("--launch NVIDIA/Megatron-LM=nowhere", "nowhere: no clone of a repository"),
        ("--checkouts nowhere", "nowhere: no clone of a repository"),
        ("--pythons python0.9", "python0.9: no such program"),
        ("--gpu nowhere.json", "--gpu nowhere.json: no such file"),
        ("--page --only no-cell", "--only no-cell: no such cell among those that were asked for"),
    ],
)
def test_a_wrong_word_is_one_sentence(
    words: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(compatibility_results, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(sys, "argv", ["compatibility.py", *words.split()])
    with pytest.raises(SystemExit, match="2"):
        compatibility.main()
    assert said in capsys.readouterr().err.splitlines()[-1]
