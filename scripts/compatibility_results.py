# SPDX-License-Identifier: Apache-2.0
"""What cells of the matrix have shown: docs/compatibility.json, and the page that is made of it."""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE = ROOT / "docs" / "compatibility.json", ROOT / "docs" / "compatibility.md"


@dataclass
class Result:
    """What a cell has shown, and when.

    Args:
        date: of the run.
        works: whether the training with our flags is the one without them.
        found: in words.
        versions: of what it ran with.
        judged: False if already the training without our flags ends badly.
    """

    date: str
    works: bool
    found: str
    versions: dict[str, str] = field(default_factory=dict)
    judged: bool = True


def today() -> str:
    """The date of a result."""
    return time.strftime("%Y-%m-%d")


def read() -> dict[str, Result]:
    """All results that there are, by the name of the cell."""
    written = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    return {name: Result(**one) for name, one in written.items()}


def save(results: dict[str, Result]) -> None:
    text = json.dumps({name: asdict(one) for name, one in results.items()}, indent=1)
    RESULTS.write_text(f"{text}\n")


_REASON = re.compile(
    r"^(?:\[rank\d+\]: )?"
    r"(\w+(?:Error|Exception)(?:: .*)?|(?:torch-profile|\S+\.py): error: .*)$",
    re.MULTILINE,
)
_CONSEQUENCES = re.compile(r"ChildFailedError|Connection closed by peer|Gloo connectFullMesh")
"""What is said of the end of another rank, which has a reason of its own."""


def last_error(output: str) -> str:
    """The last reason that a program told, else its last line; without folders of this machine.

    A reason is an error of Python, or the line in which argparse or we refuse a command line.
    """
    errors = _REASON.findall(output)
    errors = [one for one in errors if not _CONSEQUENCES.search(one)]
    # torchrun ends with rulers.
    lines = errors or re.findall(r"^.*\w.*$", output, re.MULTILINE) or ["nothing was said"]
    return re.sub(r"(?:/[\w.+-]+){2,}/", "", lines[-1].strip())[:200]


def write_page(results: dict[str, Result]) -> None:
    """The page, from all results that there are."""
    groups = {
        "wheel": "Wheels of megatron-core, with this repository's `pretrain_gpt.py`",
        "feature": "Flags of Megatron, with the newest of these wheels",
        "checkout": "Checkouts of Megatron-LM, with their own entry points",
        "loop": "Training loops of other packages",
        "fork": "Forks",
        "torch": "Versions of torch",
        "launch": "Launch scripts that people publish",
        "read": "The read side",
        "gpu": "On GPUs",
    }
    parts = [_HEAD]
    for kind, heading in groups.items():
        rows = {name: one for name, one in results.items() if name.split()[0] == kind}
        if not rows:
            continue
        parts += [f"## {heading}\n", "| what | date | result |", "|---|---|---|"]
        for name, one in rows.items():
            with_ = ", ".join(f"{key} {value}" for key, value in one.versions.items())
            shown = name.partition(" ")[2]
            parts.append(f"| {shown} | {one.date} | {word(one)} ({with_}): {one.found} |")
        parts.append("")
    PAGE.write_text("\n".join(parts))


def word(one: Result) -> str:
    return "works" if one.works else "**fails**" if one.judged else "not judged"


_HEAD = """# Compatibility

What was run, when, and what came out. `scripts/compatibility.py` runs the cells and writes this
page from `docs/compatibility.json`; what is in no table has no result. A training *works* if it
ends well with and without `--torch-profile`, prints the same loss and gradient norm in all
iterations, and leaves on every rank a trace with modules and with the forward and the backward of
each micro-batch of the recorded iteration, through each model chunk exactly once. Modules are those
of the rank that has the fewest. It is
*not judged* if it ends badly without `--torch-profile`, too, or if `--cpu` takes back what it is
about. Trainings run on a CPU (`--cpu`) with
two layers for four iterations unless the row says something else. A checkout trains on two ranks,
`pretrain_gpt.py` in a pipeline of two stages; it compiles helpers of its own and needs pybind11,
einops and, if it is old, `setuptools<80` beside it. Transformer Engine is not there: `--cpu` lets
torch's norm stand in where models of local layers ask for its norm all the same, and
`pretrain_hybrid.py` has a stack of megatron-core's own layers (`scripts/local_hybrid.py`). Versions
0.6 and 0.7 import Transformer Engine and Apex whatever the model: torch's norm, Adam and operations
on lists stand in for those (`scripts/old_engines.py`), and 0.6 trains in bf16, since its optimizer
of 32 bits lacks a method. Activation offloading cannot be tried without a GPU: Megatron moves only
tensors of a GPU. Hybrid and dynamic context parallelism train on packed sequences, which Megatron's
own attention refuses, and hierarchical context parallelism is Transformer Engine's. `train_rl.py`
needs `openai` and `fastapi`, and its inference engine attends with
FlashAttention, which needs a GPU: rollouts are tokens by chance (`scripts/toy_rollouts.py`), and
the rest of its steps is Megatron's. For
`--delay-wgrad-compute` Megatron's local layers keep their weight gradients until Megatron asks for
them (`scripts/delayed_gradients.py`). BERT and T5 train on a text with a vocabulary of 255 words
(`scripts/tiny_text.py`): Megatron's mock data has no sentences, and its NullTokenizer no masks. A
version of torch trains a loop of PyTorch
alone (`scripts/attached_loop.py`) on two ranks. Megatron-Bridge's `pretrain` trains its own recipe
of a plain GPT in a pipeline of two stages with the callback of [other-loops.md](other-loops.md)
(`scripts/bridge_loop.py`); the loops of verl, ms-swift, slime, torchtitan and Lightning train with
the lines of that page, which says what stood in for a GPU (`scripts/loops/`). A fork whose flags
have our names *works* if one sentence ends the launch before training; other forks train. A launch
script is
edited as the README says (`-m megatron.torch_profile` before the training script) and run by bash
on two ranks; `scripts/launch_scripts.py` makes sizes smaller and leaves out what needs GPUs or
files of others, so the row is about the script's form and its remaining flags.
"""
