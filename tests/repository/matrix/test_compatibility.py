# SPDX-License-Identifier: Apache-2.0
"""docs/compatibility.md holds what was run, and nothing else."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "scripts"))

import compatibility  # noqa: E402
import compatibility_results  # noqa: E402
import launch_scripts  # noqa: E402
import megatron_cells  # noqa: E402
import megatron_trainings  # noqa: E402


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
    "after",
    [
        "[rank1]: RuntimeError: [pair.cc:561] Connection closed by peer [127.0.0.1]:16582.",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "  traceback : To enable traceback see: the manual",
    ],
)
@pytest.mark.parametrize(
    "reason",
    [
        "ImportError: Transformer Engine is not installed.",
        "pretrain_gpt.py: error: argument --cp-comm-type: invalid choice: 'x'",
        "torch-profile: error: --context-parallel-size 2: there is none on the CPU.",
    ],
)
def test_the_reason_is_told_and_not_what_other_ranks_say_of_it(reason: str, after: str) -> None:
    assert compatibility_results.last_error(f"{reason}\n{after}\n") == reason


def test_checkouts_train_in_a_pipeline_and_with_entry_points_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".wheels" / "0.19.2").mkdir(parents=True)
    monkeypatch.setattr(megatron_cells, "ROOT", tmp_path)
    monkeypatch.setattr(megatron_cells, "_branches", lambda clone: ["core_r0.8.0", "main"])
    monkeypatch.setattr(
        megatron_cells, "checked_out", lambda clone, branch, scratch: scratch / branch
    )
    options = SimpleNamespace(checkouts=tmp_path, only=None)
    found = {
        cell.name: cell
        for cell in megatron_cells.cells(options, tmp_path)
        if cell.name.startswith("checkout")
    }
    first = found["checkout core_r0.8.0, pretrain_gpt.py"]
    assert first.script == tmp_path / "core_r0.8.0" / "pretrain_gpt.py"
    assert first.expected == (2, 2, 1, False)
    assert first.more[-3:] == ("--pipeline-model-parallel-size", "2", "--use-mcore-models")
    assert "--use-mcore-models" not in found["checkout main, pretrain_gpt.py"].more
    assert "checkout main, pretrain_hybrid.py" in found
    assert found["checkout main, pretrain_bert.py"].text == "new"
    assert found["checkout main, pretrain_vlm.py"].text is None


OF_ITS_OWN = "torch-profile: error: this Megatron defines --torch-profile flags of its own (a.py)."


@pytest.mark.parametrize(
    ("status", "output", "works", "judged"),
    [
        (1, f"{OF_ITS_OWN}\n", True, True),
        (0, "iteration 4/4\n", False, False),
        (1, f"{OF_ITS_OWN}\n{OF_ITS_OWN}\n", True, True),
        (1, f"{OF_ITS_OWN}\ntorch-profile: error: --torch-profile-dir: no.\n", False, True),
        (1, "ModuleNotFoundError: No module named 'transformer_engine'\n", False, False),
    ],
)
def test_a_fork_with_flags_of_our_names_is_refused_in_one_sentence(
    status: int,
    output: str,
    works: bool,
    judged: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(megatron_trainings, "train_cell", lambda *given: (status, output))
    cell = megatron_cells.Cell("fork x, y", tmp_path / "pretrain_gpt.py", (tmp_path,))
    found = megatron_trainings.refused(cell, tmp_path)
    assert (found.works, found.judged) == (works, judged)


def test_a_model_that_masks_words_trains_on_a_text_and_others_on_mock_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(megatron_trainings, "said", lambda command, *given: ran.append(command))
    for kind in (None, "new", "legacy"):
        cell = megatron_cells.Cell("x", tmp_path / "pretrain.py", (tmp_path,), text=kind)
        megatron_trainings.train_cell(cell, tmp_path, [])
    assert ["--mock-data" in command for command in ran] == [True, False, False]
    assert ["--data-path" in command for command in ran] == [False, True, True]
    assert ["--legacy-tokenizer" in command for command in ran] == [False, False, True]


def test_another_torch_has_its_version_in_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        megatron_trainings.subprocess, "check_output", lambda *a, **b: "3.10.13 2.3.1+cu121\n"
    )
    monkeypatch.setattr(megatron_trainings, "said", lambda *given: (1, "ValueError: no\n"))
    name, found = megatron_trainings.attached("python", tmp_path)
    assert name == "torch 2.3.1"
    assert (found.judged, found.versions) == (False, {"python": "3.10.13", "torch": "2.3.1"})


def test_cells_are_the_wheels_that_are_there_and_flags_with_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("0.17.0", "0.19.2", "hta"):
        (tmp_path / ".wheels" / name).mkdir(parents=True)
    monkeypatch.setattr(megatron_cells, "ROOT", tmp_path)
    options = SimpleNamespace(checkouts=None, only=None)
    found = [cell.name for cell in megatron_cells.cells(options, tmp_path)]
    assert found[:2] == ["wheel 0.17.0", "wheel 0.19.2"]
    assert found[2] == "feature `--mtp-num-layers 1`, 1 rank"
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
    assert found[-4:] == ["--num-experts", "4", "--global-batch-size", "4"]
    assert "--kv-channels" not in found


def test_a_launch_script_trains_on_mock_data_or_where_it_masks_words_on_a_text(
    tmp_path: Path,
) -> None:
    script = "torchrun pretrain_bert.py $ARGS\n"
    for launch in launch_scripts.LAUNCHES:
        made = launch_scripts.prepared(launch, script, tmp_path, tmp_path, ["--torch-profile"])
        words = made.environment["LAUNCH_MORE"].split()
        assert ("--mock-data" in words) is ("bert" not in launch.name)
        assert ("--data-path" in words) is ("bert" in launch.name)
        assert words[-1] == "--torch-profile"


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


@pytest.mark.parametrize(
    ("tried", "found"),
    [
        ("--delay-wgrad-compute", "--cpu takes --delay-wgrad-compute back, so it was not tried"),
        ("--delay-wgrad", "with --torch-profile it ends with status 3: "),
        ("--mtp-num-layers", "with --torch-profile it ends with status 3: "),
    ],
)
def test_a_flag_that_a_cpu_training_goes_without_is_not_judged(
    tried: str, found: str, tmp_path: Path
) -> None:
    said = "[torch-profile cpu-flags] on the CPU: transformer_impl local, delay_wgrad_compute False"
    result = megatron_trainings.run(
        lambda folder, ours: (3 * bool(ours), f"mtp_num_layers .... 1\n{said}\n"),
        tmp_path,
        tried=(tried,),
    )
    assert result.found.startswith(found)
    assert result.judged is ("status" in found)


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
        ("--forks nowhere", "nowhere: no repository of llm-jp/Megatron-LM, okoge-kaz/Megatron-LM"),
        ("--forks llm-jp/Megatron-LM=nowhere", "nowhere: no clone of a repository"),
        ("--pythons python0.9", "python0.9: no such program"),
        ("--torches python0.9", "python0.9: no such program"),
        ("--bridges python0.9", "python0.9: no such program"),
        ("--recorders python0.9", "python0.9: no such program"),
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
