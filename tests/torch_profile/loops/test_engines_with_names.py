# SPDX-License-Identifier: Apache-2.0
"""Several engines of megatron-core and of verl in one process, as docs/other-loops.md has them."""

from __future__ import annotations

import re
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
from documented_loops import CORE, TRAINING, VERL_BASE, Run, example, text_of

pytestmark = pytest.mark.slow

VERLS = f"""{TRAINING}
other = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
class WithLMHead(BaseEngine):
    module, train_a_step = model, staticmethod(train_a_step)
class WithValueHead(BaseEngine):
    module = other
    def train_a_step(self): other(torch.ones(2, 4)).square().mean().backward()
for _ in range(4):
    for engine in (WithValueHead(), WithLMHead()):
        for _ in range(2):
            engine.train_batch("data", "loss")
"""
CORES = f"""{CORE.partition("model = Model()")[0]}
models = {{"actor": Model(), "critic": Model()}}
optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in models.values()]

from megatron import torch_profile
from megatron.core.pipeline_parallel import get_forward_backward_func

with torch_profile.attach(models, optimizer=optimizers):
    for iteration in range(4):
        with torch_profile.step():
            for name, optimizer in zip(models, optimizers):
                for forward_only in (True, False):
                    optimizer.zero_grad()
                    with torch.set_grad_enabled(not forward_only):
                        get_forward_backward_func()(
                            forward_step_func=forward_step, data_iterator=batches(),
                            model=[models[name]], num_microbatches=2, seq_length=2,
                            micro_batch_size=2, forward_only=forward_only,
                        )
                optimizer.step()
"""


@pytest.mark.skipif(find_spec("megatron.core") is None, reason="megatron-core is not installed")
def test_two_models_on_megatron_cores_schedules_have_micro_batches_of_their_own(
    run: Run, tmp_path: Path
) -> None:
    source = f"from megatron.core import parallel_state\n{CORES}"
    assert run(source, runner=("-m", "megatron.torch_profile", "--cpu")) == {"iter-0000003"}
    (trace,) = tmp_path.rglob("rank-0.pt.trace.json.gz")
    found = Counter(re.findall(r'"((?:forward|backward|optimizer)[^"]* of \w+)"', text_of(trace)))
    assert found == {
        **{
            f"{direction} micro-batch {number} of {name}": 1
            for direction in ("forward", "backward")
            for number in (0, 1)
            for name in ("actor", "critic")
        },
        **{f"forward without gradients of {name}": 2 for name in ("actor", "critic")},
        **{f"optimizer of {name}": 1 for name in ("actor", "critic")},
    }


def test_an_actor_and_a_critic_of_verl_are_one_recording_of_rounds(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = {"verl.workers.engine.base": VERL_BASE}
    # The critic's two steps before there was an actor, and the actor's two, come before a round.
    monkeypatch.setenv("MEGATRON_TORCH_PROFILE_ITERATIONS", "5")
    assert run(example("verl") + VERLS, packages) == {"iter-0000005"}
    (trace,) = tmp_path.rglob("rank-0.pt.trace.json.gz")
    found = Counter(re.findall(r'"(step of \w+)"', text_of(trace)))
    assert found == {"step of WithValueHead": 2, "step of WithLMHead": 2}
