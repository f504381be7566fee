# SPDX-License-Identifier: Apache-2.0
"""What is built and installed: two packages and nothing else, and no torch by default."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Names in the wheel that is built from the sdist: what the sdist lacks, the wheel lacks too.

    It is built from a copy, so that the checkout stays clean.
    """
    copy = tmp_path_factory.mktemp("source")
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    for name in filter(None, tracked):
        if name.startswith("megatron/") or "/" not in name:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).exists():
                (copy / name).write_bytes((ROOT / name).read_bytes())
    # With the setuptools that is here, which torch needs: no network has to answer.
    subprocess.run(
        [sys.executable, "-m", "build", "-n", "--outdir", str(copy / "dist"), str(copy)],
        check=True,
        capture_output=True,
    )
    (built,) = (copy / "dist").glob("*.whl")
    return zipfile.ZipFile(built).namelist()


@pytest.mark.slow
def test_the_wheel_holds_our_two_packages_and_nothing_of_megatrons(wheel: list[str]) -> None:
    top = {"/".join(name.split("/")[:2]) for name in wheel if ".dist-info/" not in name}
    assert top == {"megatron/torch_profile", "megatron/torch_trace", "megatron_torch_profile.py"}
    assert "megatron/__init__.py" not in wheel
    assert "megatron/torch_trace/py.typed" in wheel


@pytest.mark.slow
def test_the_wheel_holds_every_module_template_and_asset(wheel: list[str]) -> None:
    source = {str(path.relative_to(ROOT)) for path in (ROOT / "megatron").rglob("*.*")}
    tracked = subprocess.run(
        ["git", "ls-files", "megatron"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert source & set(tracked) <= set(wheel)


def test_the_base_install_touches_neither_torch_nor_megatron() -> None:
    requirements = metadata.requires("megatron-torch-profile") or []
    base = [r for r in requirements if "extra ==" not in r]
    names = {re.split(r"[<>=!~ ;\[]", r)[0] for r in base}
    assert not names & {"torch", "megatron-core", "wandb", "tensorboard", "nvidia-ml-py"}
    assert {"click", "msgspec", "polars", "rich", "wrapt"} <= names
