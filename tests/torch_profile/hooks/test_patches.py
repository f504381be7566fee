# SPDX-License-Identifier: Apache-2.0
"""Patching: any order of import, apply and remove, on a Megatron of two functions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from megatron.torch_profile.followers import followers
from megatron.torch_profile.guard import Guard
from megatron.torch_profile.hooks import following, megatron_names
from megatron.torch_profile.log import Slug
from megatron.torch_profile.patching import Patch, PatchSet, version_in
from megatron.torch_profile.record import session

SOURCE = """
def train(iterations):
    return [train_step(i) for i in range(iterations)]

def train_step(i):
    return ("step", i)

class Timer:
    def start(self):
        return "started"
"""
_number = count()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Name of an importable module that is new in every test."""
    name = f"host_module_{next(_number)}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


def shout(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    return ("wrapped", wrapped(*args, **kwargs))


def make(host: str, *names: str) -> PatchSet:
    return PatchSet(tuple(Patch(host, name, shout) for name in names))


def load(host: str) -> Any:
    return __import__(host)


ORDERS: list[list[str]] = [
    ["import", "apply"],
    ["apply", "import"],
    ["apply", "import", "apply"],
    ["import", "apply", "remove", "apply"],
    ["apply", "remove", "import", "apply"],
    ["apply", "remove", "apply", "import"],
]


@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
def test_in_every_order_a_name_is_wrapped_once(host: str, order: list[str]) -> None:
    megatron_names = make(host, "train_step")
    do: dict[str, Callable[[], Any]] = {
        "import": lambda: load(host),
        "apply": megatron_names.apply,
        "remove": megatron_names.remove,
    }
    for action in order:
        do[action]()
    # Looked up by its own module when `train` calls it.
    assert load(host).train(2) == [("wrapped", ("step", 0)), ("wrapped", ("step", 1))]


@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
def test_after_remove_every_name_is_the_original_object(host: str, order: list[str]) -> None:
    megatron_names = make(host, "train_step", "Timer.start")
    originals: dict[str, Any] = {}

    def remember() -> None:
        module = load(host)
        originals.setdefault("train_step", module.__dict__["train_step"])

    for action in order:
        {"import": remember, "apply": megatron_names.apply, "remove": megatron_names.remove}[
            action
        ]()
    megatron_names.remove()
    megatron_names.remove()
    module = load(host)
    assert module.train(1) == [("step", 0)]
    assert type(module.train_step).__name__ == "function"
    assert type(module.Timer.__dict__["start"]).__name__ == "function"
    assert module.Timer().start() == "started"


def test_a_module_imported_after_remove_is_left_alone(host: str) -> None:
    megatron_names = make(host, "train_step")
    megatron_names.apply()
    megatron_names.remove()
    assert type(load(host).train_step).__name__ == "function"


def test_a_wrapper_that_somebody_else_put_on_top_stays_and_ours_passes_on(host: str) -> None:
    megatron_names = make(host, "train_step")
    megatron_names.apply()
    module = load(host)
    ours = module.train_step

    def theirs(i: int) -> Any:
        return ("theirs", ours(i))

    module.train_step = theirs
    megatron_names.remove()
    assert module.train_step is theirs
    assert module.train(1) == [("theirs", ("step", 0))]


def test_a_wrapped_name_looks_like_the_original(host: str) -> None:
    megatron_names = make(host, "train_step")
    megatron_names.apply()
    module = load(host)
    assert module.train_step.__name__ == "train_step"
    assert module.train_step.__wrapped__.__module__ == host


def test_a_name_of_newer_versions_may_be_missing(host: str) -> None:
    PatchSet((Patch(host, "evaluate", shout, since=(0, 9)),)).apply()
    load(host)


def test_a_name_that_every_supported_version_has_must_be_there(
    host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    PatchSet((Patch(host, "evaluate", shout),)).apply()
    with pytest.raises(SystemExit) as exit_:
        load(host)
    assert exit_.value.code == 2
    err = capsys.readouterr().err
    assert "needs Megatron core 0.6 or newer and found" in err
    assert f"{host} has no evaluate." in err


def test_a_version_is_read_without_importing(tmp_path: Path) -> None:
    (tmp_path / "package_info.py").write_text("MAJOR = 0\nMINOR = 5\nPATCH = 0\nPRE = 'rc0'\n")
    assert version_in(tmp_path) == "0.5.0"
    assert version_in(tmp_path / "elsewhere") == "of unknown version"


def test_a_fork_that_counts_iterations_elsewhere_trains_without_a_profile(
    monkeypatch: pytest.MonkeyPatch, warned: list[str]
) -> None:
    monkeypatch.setattr(followers, "plan", "a plan")
    monkeypatch.setattr(followers, "results", "somebody")
    monkeypatch.setattr(megatron_names, "_megatron_args", lambda: SimpleNamespace())
    for name in ("_steps", "_windows"):
        monkeypatch.setattr(megatron_names, name, Guard(Slug.NO_PROFILE, "no more of it"))
    for _ in range(2):
        assert megatron_names._train_step(lambda x: x + 1, None, (3,), {}) == 4
        assert megatron_names._training_log(lambda x: x + 1, None, (3,), {}) == 4
    lost = "no more of it: AttributeError: "
    assert [line.startswith(lost) for line in warned] == [True, True]


def test_a_train_that_does_not_tell_its_arguments_still_trains(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, warned: list[str]
) -> None:
    args = SimpleNamespace(
        torch_profile=True, torch_profile_dir=str(tmp_path), train_iters=10, iteration=0
    )
    monkeypatch.setattr(megatron_names, "_megatron_args", lambda: args)
    monkeypatch.setattr(megatron_names, "_flops_per_iteration", lambda _: None)
    monkeypatch.setattr(following, "follower", {"session": session}.get)
    assert megatron_names._train(max, None, (3, 4), {}) == 4, "a builtin has no signature"
    assert len(warned) == 1
    assert warned[0].startswith("training goes on without spans of modules: ValueError")
