# SPDX-License-Identifier: Apache-2.0
"""Installing this package moves nothing that the Megatron of a container of 2023 needs."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest

if sys.version_info < (3, 11):
    pytest.skip("tomllib came with Python 3.11", allow_module_level=True)
import tomllib

ROOT = Path(__file__).parents[2]
THERE = {
    "click": "8.1.3",
    "jinja2": "3.0.3",
    "markdown-it-py": "2.2.0",
    "markupsafe": "2.0.1",
    "mdurl": "0.1.2",
    "msgspec": "0.18.0",
    "numpy": "1.22.4",
    "packaging": "21.3",
    "protobuf": "3.20.3",
    "pygments": "2.13.0",
    "rich": "13.0.0",
    "torch": "2.1.0",
    "typing-extensions": "4.4.0",
    "wrapt": "1.14.1",
    "zstandard": "0.18.0",
}
"""What is there, as pip sees it: names and versions are all that it compares."""


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment in which these are installed, as far as pip can tell."""
    folder = tmp_path_factory.mktemp("container")
    venv.create(folder, with_pip=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name, version in THERE.items():
        record = packages / f"{name.replace('-', '_')}-{version}.dist-info"
        record.mkdir()
        head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (record / "METADATA").write_text(head)
    return folder / "bin" / "python"


def test_pip_would_add_packages_and_move_none(container: Path, tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    report = tmp_path / "report.json"
    pip = [container, "-m", "pip", "install", "--quiet", "--dry-run", "--report", report]
    done = subprocess.run([*pip, *project["dependencies"]], capture_output=True, text=True)
    if done.returncode and "Retrying (" in done.stderr:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
    wanted = {one["metadata"]["name"].lower() for one in json.loads(report.read_text())["install"]}
    assert wanted & set(THERE) == set()

    assert wanted == {"isal", "polars", "polars-runtime-32", "pyroaring", "zlib-ng"}
