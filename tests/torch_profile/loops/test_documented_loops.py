# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/other-loops.md, word for word.

Loops of PyTorch alone run as they stand. Of the others only what the example touches is there, in
ten lines each, under the names that Megatron-Bridge 0.6.2, Lightning, verl, slime, ms-swift and
torchtitan have for it.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from documented_loops import CORE, TRAINING, VERL_BASE, Run, example, text_of

pytestmark = pytest.mark.slow

CALLBACK = "class Callback: pass\n"
BRIDGE = f"""{TRAINING}
from types import SimpleNamespace
done = SimpleNamespace(step=4)
state = SimpleNamespace(cfg=SimpleNamespace(train=SimpleNamespace(train_iters=8)), train_state=done)
context = SimpleNamespace(state=state, model=[model], optimizer=optimizer)
callback = TorchProfile()
callback.on_train_start(context)
while done.step < 8:
    callback.on_train_step_start(context)
    train_a_step()
    callback.on_train_step_end(context)
    done.step += 1
callback.on_train_end(context)
"""
LIGHTNING = f"""{TRAINING}
from types import SimpleNamespace
trainer = SimpleNamespace(max_steps=4, global_step=0, model=model)
callback = TorchProfile()
callback.on_train_start(trainer, model)
for batch in range(8):
    callback.on_train_batch_start(trainer, model, None, batch)
    model(torch.ones(2, 4)).square().mean().backward()
    if batch % 2:
        optimizer.step()
        trainer.global_step += 1
    callback.on_train_batch_end(trainer, model, None, None, batch)
callback.on_train_end(trainer, model)
"""
VERL = f"""{TRAINING}
class Engine(BaseEngine):
    module, train_a_step = model, staticmethod(train_a_step)
for _ in range(4):
    Engine().train_batch("data", "loss")
"""
SLIME_MODEL = "def train_one_step(args, rollout_id, step_id, data, *more): data()\n"
SLIME = f"""{TRAINING}
follow("args")
for rollout in range(2):
    for step in range(2):
        slime_model.train_one_step(
            "args", rollout, step, train_a_step, [model], optimizer, None, 1, 1)
"""
SWIFT_MAP = "megatron_callbacks_map = {}\n"
SWIFT_BASE = """
class MegatronCallback:
    def __init__(self, trainer):
        self.trainer, self.args, self.state = trainer, trainer.args, trainer.state
"""
SWIFT = f"""{TRAINING}
from types import SimpleNamespace
state, args = SimpleNamespace(iteration=4), SimpleNamespace(train_iters=8)
trainer = SimpleNamespace(args=args, state=state, wrapped_models=[model], optimizer=optimizer)
callback = megatron_callbacks_map["torch_profile"](trainer)
callback.on_train_begin()
while state.iteration < 8:
    callback.on_step_begin()
    train_a_step()
    state.iteration += 1
    callback.on_step_end()
callback.on_train_end()
"""
TITAN_TRAINER = """
class Trainer:
    step = 4

    def train(self):
        while self.step < self.config.training.steps:
            self.step += 1
            self.train_step(None)

    def train_step(self, data):
        self.train_a_step()
"""
TITAN_MAIN = "def main(): pass\n"
TITAN = f"""{TRAINING}
from types import SimpleNamespace
trainer = Trainer()
trainer.model_parts, trainer.train_a_step = [model], train_a_step
trainer.config = SimpleNamespace(training=SimpleNamespace(steps=8), to_dict=dict)
trainer.parallel_dims = SimpleNamespace(get_optional_mesh=lambda name: None)
trainer.train()
"""


@pytest.mark.parametrize("heading", [None, "Several models", "FSDP2"])
def test_loops_of_pytorch_alone(heading: str | None, run: Run) -> None:
    assert run(example(heading)) == {"iter-0000003"}


@pytest.mark.skipif(find_spec("megatron.core") is None, reason="megatron-core is not installed")
def test_a_loop_on_megatron_cores_schedules(run: Run, tmp_path: Path) -> None:
    source = example("megatron-core") + CORE
    assert run(source, runner=("-m", "megatron.torch_profile", "--cpu")) == {"iter-0000003"}
    (trace,) = tmp_path.rglob("rank-0.pt.trace.json.gz")
    text = text_of(trace)
    for direction in ("forward", "backward"):
        for number in (0, 1):
            assert text.count(f'"{direction} micro-batch {number}"') == 1


@pytest.mark.parametrize("ending", ["", "raise SystemExit(0)\n"], ids=["end", "exit"])
def test_a_process_that_ends_in_a_window_writes_it_although_python_starts_no_thread_any_more(
    ending: str, run: Run, tmp_path: Path
) -> None:
    source = f"""{TRAINING}
from megatron import torch_profile
torch_profile.attach(model, config={{"active": 5, "skip_first": 8}})
for iteration in range(1, 13):
    with torch_profile.step(iteration):
        train_a_step()
{ending}"""
    assert run(source, quiet=False) == set()
    (trace,) = tmp_path.rglob("rank-0.partial.pt.trace.json.gz")
    steps = text_of(trace).count('"ProfilerStep#')
    assert steps == 3
    assert list(tmp_path.rglob("*.json.tmp")) == []


@pytest.mark.parametrize(
    ("heading", "packages", "driver", "window"),
    [
        (
            "Megatron-Bridge",
            {"megatron.bridge.training.callbacks": CALLBACK},
            BRIDGE,
            "iter-0000007",
        ),
        ("NeMo", {"lightning.pytorch.callbacks": CALLBACK}, LIGHTNING, "iter-0000003"),
        ("verl", {"verl.workers.engine.base": VERL_BASE}, VERL, "iter-0000003"),
        (
            "ms-swift",
            {
                "swift.megatron.callbacks.__init__": SWIFT_MAP,
                "swift.megatron.callbacks.base": SWIFT_BASE,
            },
            SWIFT,
            "iter-0000007",
        ),
        (
            "torchtitan",
            {"torchtitan.trainer": TITAN_TRAINER, "torchtitan.train": TITAN_MAIN},
            TITAN,
            "iter-0000007",
        ),
        ("slime", {"slime.backends.megatron_utils.model": SLIME_MODEL}, SLIME, "iter-0000003"),
    ],
    ids=lambda value: value if isinstance(value, str) and "\n" not in value else "",
)
def test_loops_of_other_packages(
    heading: str, packages: dict[str, str], driver: str, window: str, run: Run
) -> None:
    assert run(example(heading) + driver, packages) == {window}
