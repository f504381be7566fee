# SPDX-License-Identifier: Apache-2.0
"""Models that each have steps of their own: what an iteration is, and what is in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attached_training import Training, config, model, traces
from several_models import spans, train

from megatron import torch_profile

PASSES = ("forward micro-batch 0", "backward micro-batch 0")
PASSES += ("forward micro-batch 1", "backward micro-batch 1", "optimizer")


def a_step_of(name: str) -> list[str]:
    return [f"step of {name}", *(f"{one} of {name}" for one in PASSES)]


def test_where_each_model_has_steps_of_its_own_an_iteration_is_a_round_of_them(
    tmp_path: Path, warned: list[str]
) -> None:
    plain, engines = Training(1), {"critic": Training(1), "actor": Training(2)}
    for _ in range(8):
        plain.step()
    attached: list[Any] = []

    def followed(name: str) -> None:
        engine = engines[name]
        attached.append(
            torch_profile.attach(
                {name: engine.model}, config=config(tmp_path, spans=["phases"], iterations=["6"])
            )
        )
        with torch_profile.step(model=name):
            engine.step()

    # Iterations 1 to 4 are steps of the critic alone, and 5 is what the actor does until the
    # critic comes again.
    for name in ("critic", "critic", *("critic", "critic", "actor", "actor") * 3):
        followed(name)
    attached[0].detach()
    assert all(one is attached[0] for one in attached)
    assert engines["critic"].losses == plain.losses
    assert [line for line in warned if "attach()" in line or "step(" in line] == []
    (trace,) = traces(tmp_path)
    both = [*a_step_of("critic") * 2, *a_step_of("actor") * 2]
    assert spans(trace) == ["ProfilerStep#6", *both]


def test_the_step_of_a_model_inside_an_iteration_begins_none(tmp_path: Path) -> None:
    engines = {"critic": Training(1), "actor": Training(2)}
    models = {name: engine.model for name, engine in engines.items()}

    def both() -> None:
        for name, engine in engines.items():
            with torch_profile.step(model=name):
                engine.step()

    with torch_profile.attach(models, config=config(tmp_path, spans=["phases"])):
        train(both)
    (trace,) = traces(tmp_path)
    assert spans(trace) == ["ProfilerStep#3", *a_step_of("critic"), *a_step_of("actor")]


def test_the_step_of_a_model_that_fails_leaves_what_is_recorded(tmp_path: Path) -> None:
    engine = Training(1)

    def run_and_fail() -> None:
        wanted = config(tmp_path, skip_first=0, active=3)
        with torch_profile.attach({"actor": engine.model, "critic": model()}, config=wanted):
            for _ in range(2):
                with torch_profile.step(model="actor"):
                    engine.step()
                with torch_profile.step(model="critic"):
                    pass
            with torch_profile.step(model="actor"):
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_and_fail()
    assert [trace.name for trace in traces(tmp_path)] == ["rank-0.partial.pt.trace.json.gz"]


NAMED = ("actor", "critic")


@pytest.mark.parametrize(
    ("wrong", "names", "said"),
    [
        ("crtic", NAMED, "actor, critic; did you mean critic?"),
        ("reward", NAMED, "actor, critic"),
        (["actor"], NAMED, "actor, critic; did you mean actor?"),
        ("actor", (), 'one without a name (with a name: attach({"actor": actor}))'),
    ],
)
def test_a_step_of_a_model_that_was_never_attached_is_said_once(
    wrong: Any, names: tuple[str, ...], said: str, tmp_path: Path, warned: list[str]
) -> None:
    models = {name: model() for name in names} or model()
    with torch_profile.attach(models, config=config(tmp_path, spans=["phases"])):
        for _ in range(3):
            for name in (*names, wrong):
                with torch_profile.step(model=name):
                    pass
    assert [line for line in warned if "step(" in line] == [
        f"step(model={wrong!r}) is of no attached model; attached: {said}"
    ]


def test_a_model_that_was_attached_in_time_is_known_by_its_name(
    tmp_path: Path, warned: list[str]
) -> None:
    with torch_profile.attach({"critic": model()}, config=config(tmp_path)):
        torch_profile.attach({"actor": model()})
        for name in ("critic", "actor") * 3:
            with torch_profile.step(model=name):
                pass
    assert [line for line in warned if "step(" in line] == []
