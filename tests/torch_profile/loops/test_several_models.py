# SPDX-License-Identifier: Apache-2.0
"""Loops with several models, which have names: whose a span is, and what an iteration is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from attached_training import config, model, read, traces
from several_models import spans, train

from megatron import torch_profile

GENERATOR, DISCRIMINATOR, REFERENCE = "generator", "discriminator", "reference"


class Gan:
    """A generator and a discriminator, which train in one iteration, and a model that does not."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.models = {name: model() for name in (GENERATOR, DISCRIMINATOR, REFERENCE)}
        self.optimizers = {
            name: torch.optim.SGD(self.models[name].parameters(), lr=0.1)
            for name in (GENERATOR, DISCRIMINATOR)
        }
        self.losses: list[str] = []

    def train(self) -> None:
        generator, discriminator, reference = self.models.values()
        made = generator(torch.ones(2, 4))
        with torch.no_grad():
            wanted = reference(torch.ones(2, 4))
        self._improve(DISCRIMINATOR, discriminator(made.detach()) - discriminator(wanted))
        self._improve(GENERATOR, discriminator(generator(torch.ones(2, 4))) - wanted)

    def _improve(self, name: str, output: torch.Tensor) -> None:
        loss = output.square().mean()
        loss.backward()
        self.losses.append(loss.item().hex())
        self.optimizers[name].step()
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()


def test_each_model_counts_its_own_micro_batches_and_trains_as_it_would(tmp_path: Path) -> None:
    plain, gan = Gan(), Gan()
    train(plain.train)
    with torch_profile.attach(
        gan.models, optimizer=gan.optimizers, config=config(tmp_path, spans=["phases"])
    ):
        train(gan.train)
    assert gan.losses == plain.losses
    (trace,) = traces(tmp_path)
    assert spans(trace) == [
        "ProfilerStep#3",
        "forward micro-batch 0 of generator",
        "forward without gradients of reference",
        "forward micro-batch 0 of discriminator",
        "forward micro-batch 1 of discriminator",
        "backward micro-batch 1 of discriminator",
        "optimizer of discriminator",
        "forward micro-batch 1 of generator",
        "forward micro-batch 2 of discriminator",
        "backward micro-batch 2 of discriminator",
        "optimizer of generator",
    ]


def test_modules_begin_with_the_name_of_their_model(tmp_path: Path, said: list[str]) -> None:
    gan = Gan()
    with torch_profile.attach(gan.models, config=config(tmp_path, spans=["modules"])):
        train(gan.train)
    assert "spans of modules: 9 modules" in said
    (trace,) = traces(tmp_path)
    assert {name for name in spans(trace) if " (" not in name} == {
        "ProfilerStep#3",
        *(
            f"{name}{part}"
            for name in gan.models
            for part in (": Sequential", ".0: Linear", ".1: ReLU")
        ),
    }


def test_a_model_in_chunks_has_them_below_its_name(tmp_path: Path) -> None:
    chunks, critic = [model(), model()], model()
    wanted = config(tmp_path, spans=["modules"])
    with torch_profile.attach({"actor": chunks, "critic": critic}, config=wanted):
        train(lambda: critic(chunks[1](chunks[0](torch.ones(2, 4)))).sum().backward())
    (trace,) = traces(tmp_path)
    assert [name for name in spans(trace) if name.endswith((": Sequential", "#3"))] == [
        "ProfilerStep#3",
        "actor.chunk0: Sequential",
        "actor.chunk1: Sequential",
        "critic: Sequential",
    ]
    # Two models are not two virtual stages; two chunks are.
    assert read(trace)["torch_profile"]["flags"] == ["--num-virtual-stages-per-pipeline-rank=2"]


def test_a_backward_through_two_models_is_one_of_each(tmp_path: Path) -> None:
    policy, value = model(), model()

    def both() -> None:
        for _ in range(2):
            (policy(torch.ones(2, 4)).sum() + value(torch.ones(2, 4)).sum()).backward()

    wanted = config(tmp_path, spans=["phases"])
    with torch_profile.attach({"policy": policy, "value": value}, config=wanted):
        train(both)
    (trace,) = traces(tmp_path)
    assert sorted(name for name in spans(trace) if name.startswith("backward")) == [
        f"backward micro-batch {number} of {name}"
        for number in (0, 1)
        for name in ("policy", "value")
    ]


def test_a_frozen_model_has_no_micro_batches_unless_its_input_trains(tmp_path: Path) -> None:
    actor, frozen = model(), model().requires_grad_(False)

    def forwards() -> None:
        frozen(torch.ones(2, 4))
        frozen(actor(torch.ones(2, 4))).sum().backward()

    wanted = config(tmp_path, spans=["phases"])
    with torch_profile.attach({"actor": actor, "reward": frozen}, config=wanted):
        train(forwards)
    (trace,) = traces(tmp_path)
    assert spans(trace) == [
        "ProfilerStep#3",
        "forward without gradients of reward",
        "forward micro-batch 0 of actor",
        "forward micro-batch 0 of reward",
        "backward micro-batch 0 of reward",
    ]


def test_an_optimizer_of_both_models_is_of_neither(tmp_path: Path) -> None:
    models = {"policy": model(), "value": model()}
    both = torch.optim.SGD([p for one in models.values() for p in one.parameters()], lr=0.1)
    with torch_profile.attach(models, optimizer=both, config=config(tmp_path, spans=["phases"])):
        train(both.step)
    (trace,) = traces(tmp_path)
    assert spans(trace) == ["ProfilerStep#3", "optimizer"]


def test_a_second_attach_without_names_ends_the_first_recording_and_says_how_to_have_both(
    tmp_path: Path, warned: list[str]
) -> None:
    for second in (model(), {"critic": model()}):
        torch_profile.attach(model(), config=config(tmp_path))
        train(lambda: None, 4)
        attached = torch_profile.attach(second, config=config(tmp_path))
        attached.detach()
    assert [line for line in warned if "second time" in line] == [
        "attach() comes a second time without detach(): the recording of the first loop ends after "
        "iteration 4; several models of one loop are recorded together where they have names: "
        'attach({"actor": actor, "critic": critic})'
    ] * 2


def test_a_name_that_stands_for_another_model_begins_another_recording(
    tmp_path: Path, warned: list[str]
) -> None:
    first = torch_profile.attach({"actor": model()}, config=config(tmp_path))
    second = torch_profile.attach({"actor": model()}, config=config(tmp_path))
    assert second is not first
    assert len([line for line in warned if "second time" in line]) == 1


@pytest.mark.parametrize("name", ["model", "chunk0", "my actor", "", 3])
def test_what_is_no_name_is_one_sentence(
    name: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        torch_profile.attach({name: model()}, config=config(tmp_path))
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        f"torch-profile: error: attach(): {name!r} is no name for a model; take one word of "
        "letters, digits and underscores, such as actor, but not model, or chunk with a number.\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_joins_needs_a_name_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with torch_profile.attach({"actor": model()}, config=config(tmp_path)):
        with pytest.raises(SystemExit) as ended:
            torch_profile.attach({"my critic": model()}, config=config(tmp_path))
        assert ended.value.code == 2
    assert "attach(): 'my critic' is no name for a model" in capsys.readouterr().err


def test_nobody_asks_and_names_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    gan = Gan()
    with torch_profile.attach(gan.models, optimizer=gan.optimizers):
        assert torch_profile.step(model=GENERATOR) is torch_profile.step()
    assert list(tmp_path.iterdir()) == []
