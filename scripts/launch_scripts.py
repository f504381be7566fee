# SPDX-License-Identifier: Apache-2.0
"""Launch scripts that people publish, with our one word put in, on the CPU.

A script is read from a clone of its repository and nothing of its text is kept here. It is edited
as the README says and run by bash; `torchrun`, `srun` and `python` are then programs of ours on the
PATH that start two ranks here with the script's own arguments, less what only GPUs and files of
others have (DROPPED), and with smaller sizes after them: of two values argparse takes the last.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import tiny_text

WORD = "-m megatron.torch_profile"
RANKS = 2
_FILES_OF_OTHERS = (
    "--data-path --data-cache-path --vocab-file --merge-file --tokenizer-model --tokenizer-type "
    "--load --save --save-interval --tensorboard-dir --split --tiktoken-pattern "
    "--wandb-project --wandb-exp-name"
)
_LENGTHS = (
    "--train-samples --lr-decay-samples --lr-warmup-samples --lr-warmup-fraction --lr-warmup-iters "
    "--lr-decay-iters --step-batch-size-schedule --exit-duration-in-mins"
)
_NOT_ON_CPUS = (
    "--fp16 --bf16 --fp8-format --fp8-amax-history-len --fp8-amax-compute-algo --fp8-param-gather "
    "--grad-reduce-in-bf16 --use-flash-attn --attention-backend --distributed-backend "
    "--apply-layernorm-1p --moe-grouped-gemm --disable-bf16-reduced-precision-matmul --profile"
)
DROPPED = {*_FILES_OF_OTHERS.split(), *_LENGTHS.split(), *_NOT_ON_CPUS.split()}
SIZES = {
    "--num-layers": "2",
    "--hidden-size": "64",
    "--num-attention-heads": "4",
    "--seq-length": "32",
    "--max-position-embeddings": "32",
    "--micro-batch-size": "1",
    "--global-batch-size": "2",
    "--train-iters": "4",
    "--lr": "1e-3",
    "--log-interval": "1",
    "--eval-interval": "1000",
    "--eval-iters": "0",
    "--tokenizer-type": "NullTokenizer",
    "--vocab-size": "8191",
    "--transformer-impl": "local",
    "--tensor-model-parallel-size": "1",
    "--pipeline-model-parallel-size": "1",
}
ONLY_REDUCED = {
    "--ffn-hidden-size": "128",
    "--moe-ffn-hidden-size": "128",
    "--kv-channels": "16",
    "--num-query-groups": "2",
    "--num-experts": "4",
    "--expert-model-parallel-size": "1",
    "--context-parallel-size": "1",
}
"""Sizes that stay away where the script does not name them."""

_LAUNCH = re.compile(
    r"^(?P<launcher>[ \t]*(?:torchrun|srun|python)\b(?:\\\n|[^\n])*?\s)"
    r"(?P<script>\"?\$?\{?[\w/.-]*(?:pretrain_\w+\.py|PRETRAIN_SCRIPT_PATH)\}?\"?(?=\s))",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Launch:
    """A published launch script.

    Args:
        repository: owner and name on GitHub.
        path: of the script in it.
        branch: of Megatron-LM, whose entry point it starts.
        more: sizes beside `SIZES`, which win over them; how two ranks are shared out.
        setting: variables that its readers are told to set.
        files: how many paths it takes as its own arguments.
        text: whether it trains on a text, of tiny_text.py; else on Megatron's mock data.
    """

    repository: str
    path: str
    more: str
    branch: str = "main"
    setting: tuple[tuple[str, str], ...] = ()
    files: int = 5
    text: bool = False

    @property
    def name(self) -> str:
        """Of its row; Megatron-LM keeps its scripts in the folder `examples`."""
        return f"{self.repository}: {self.path.removeprefix('examples/')}"


MEGATRON, _AWS = "NVIDIA/Megatron-LM", "aws-samples/awsome-distributed-training"
_SLURM = (
    ("NODES", "2"),
    ("SLURM_JOB_NUM_NODES", "2"),
    ("SLURM_JOB_ID", "1"),
    ("IMAGE", "/etc/hosts"),
)
_ON_AWS = "3.test_cases/megatron/megatron-lm/slurm"
_TP2, _PP2 = "--tensor-model-parallel-size 2", "--pipeline-model-parallel-size 2"
_DP2 = "--global-batch-size 4"
LAUNCHES = (
    Launch(MEGATRON, "examples/gpt3/train_gpt3_175b_distributed.sh", _PP2),
    Launch(MEGATRON, "examples/llama/train_llama3_8b_h100_fp8.sh", _DP2, files=0),
    Launch(MEGATRON, "examples/mixtral/train_mixtral_8x7b_distributed.sh", _PP2),
    Launch(
        MEGATRON,
        "examples/bert/train_bert_340m_distributed.sh",
        f"{_TP2} --spec local --attention-backend local --vocab-extra-ids 10",
        "core_r0.15.0",
        text=True,
    ),
    Launch(_AWS, f"{_ON_AWS}/gpt3/2.distributed-training.sbatch", _PP2, setting=_SLURM),
    Launch(_AWS, f"{_ON_AWS}/llama2/pretrain-llama2.sbatch", _TP2, setting=_SLURM),
)


def edited(text: str) -> str:
    """A launch script with our word before the training script, as the README says.

    Raises:
        ValueError: no command in it starts a training script.
    """
    result, count = _LAUNCH.subn(rf"\g<launcher>{WORD} \g<script>", text)
    if not count:
        raise ValueError("no command starts a training script")
    return result


def reduced(arguments: list[str], more: list[str]) -> list[str]:
    """A script's arguments without what a CPU has not, and small sizes after them."""
    kept, takes = [], True
    for word in arguments:
        if word.startswith("--"):
            takes = word.partition("=")[0] not in DROPPED
        if takes:
            kept.append(word)
    sizes = SIZES | {flag: size for flag, size in ONLY_REDUCED.items() if flag in kept}
    after = [word for pair in sizes.items() for word in pair]
    return [*kept, *after, *more]


@dataclass(frozen=True)
class Prepared:
    """What runs an edited script."""

    command: list[str]
    environment: dict[str, str]


def prepared(launch: Launch, text: str, checkout: Path, folder: Path, ours: list[str]) -> Prepared:
    """Lay out the edited script and the programs it calls in a folder."""
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    for name in ("torchrun", "srun", "python"):
        program = programs / name
        program.write_text(
            f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(_HERE)!r})\n"
            "import launch_scripts\nlaunch_scripts.start(sys.argv[1:])\n"
        )
        program.chmod(0o755)
    script = folder / "script.sh"
    script.write_text(edited(text))
    for entry in checkout.glob("pretrain_*.py"):
        if not (folder / entry.name).exists():
            (folder / entry.name).symlink_to(entry)
    # What its readers are told to give: checkpoints, vocabulary, data. None is there.
    files = [str(folder / f"given-{number}") for number in range(launch.files)]
    data = tiny_text.flags(folder, legacy=True) if launch.text else ["--mock-data"]
    environment = dict(launch.setting) | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "LAUNCH_CHECKOUT": str(checkout),
        "LAUNCH_MORE": shlex.join([*data, *launch.more.split(), *ours]),
    }
    return Prepared(["bash", str(script), *files], environment)


def start(arguments: list[str]) -> None:
    """What `torchrun`, `srun` or `python` of a script becomes: two ranks on this machine."""
    at = next((n for n in range(len(arguments)) if arguments[n : n + 2] == WORD.split()), None)
    if at is None:
        raise SystemExit(f"the launch command does not have {WORD}")
    script, *given = arguments[at + 2 :]
    words = reduced(given, shlex.split(os.environ["LAUNCH_MORE"]))
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node", str(RANKS), *WORD.split(), "--cpu",
        str(Path(os.environ["LAUNCH_CHECKOUT"]) / Path(script).name), *words,
    ]  # fmt: skip
    os.execv(sys.executable, command)


_HERE = Path(__file__).resolve().parent
