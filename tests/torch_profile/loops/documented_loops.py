# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/other-loops.md, and what runs them as one rank."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "other-loops.md").read_text()

TRAINING = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train_a_step():
    model(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
VERL_BASE = "class BaseEngine:\n    def train_batch(self, *args): self.train_a_step()\n"
CORE = """
import torch
from megatron.core.transformer import MegatronModule, TransformerConfig

torch.distributed.init_process_group("gloo")
parallel_state.initialize_model_parallel()

class Model(MegatronModule):
    def __init__(self):
        super().__init__(TransformerConfig(num_layers=1, hidden_size=4, num_attention_heads=1))
        self.linear = torch.nn.Linear(4, 4)

    model_type = None

    def set_input_tensor(self, tensor):
        pass

    def forward(self, x):
        return self.linear(x)

def forward_step(data, model):
    def loss(output):
        value = output.square().mean()
        return value, {"loss": value.detach()}

    return model(next(data)), loss

def batches():
    while True:
        yield torch.ones(2, 4)

model = Model()
train([model], torch.optim.SGD(model.parameters(), lr=0.1), forward_step, batches(), 4, 2, 2, 2)
"""


def example(heading: str | None) -> str:
    """The first Python of a section; of the page's own head without one."""
    section = PAGE.partition(f"\n## {heading}")[2] if heading else PAGE
    match = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert match, heading
    return match[1]


def text_of(trace: Path) -> str:
    return gzip.decompress(trace.read_bytes()).decode()


LIBRARIES = ("torch", "torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.fsdp")
Run = Callable[..., set[str]]


def run_rank(
    python: str,
    tmp_path: Path,
    source: str,
    packages: dict[str, str] | None = None,
    runner: tuple[str, ...] = (),
    quiet: bool = True,
) -> set[str]:
    """Run it as one rank, recorded, and return the windows that have a trace."""
    for name, text in (packages or {}).items():
        module = tmp_path / "packages" / f"{name.replace('.', '/')}.py"
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text(text)
    (tmp_path / "train.py").write_text(source)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path / "packages")]),
        "MEGATRON_TORCH_PROFILE": "1",
        "MEGATRON_TORCH_PROFILE_SPANS": "phases modules",
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }
    done = subprocess.run(
        [python, *runner, "train.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not quiet or "warning" not in done.stdout, done.stdout
    return {trace.parent.name for trace in tmp_path.rglob("rank-0.pt.trace.json.gz")}
