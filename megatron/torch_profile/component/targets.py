# SPDX-License-Identifier: Apache-2.0
"""From the name of a target to the Python object that it names."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch

from megatron.torch_profile.component.config import nearest
from megatron.torch_trace.errors import UsageError


def resolve(target: str, ready: list[str]) -> Any:
    """What an import path names.

    Args:
        target: `package.module:name`, `package.module.name` or `file.py:name`.
        ready: names of the ready components, for the sentence about a target that is none.

    Raises:
        UsageError: it cannot be imported, or holds no such name.
    """
    module, colon, name = target.rpartition(":")
    if not colon:
        module, _, name = target.rpartition(".")
    if not module or not name:
        raise UsageError(
            f"target {target}: neither a ready component nor package.module:name or "
            f"file.py:name{nearest(target, ready)}"
        )
    found: Any = _imported(target, module)
    for part in name.split("."):
        if not hasattr(found, part):
            public = [one for one in dir(found) if not one.startswith("_")]
            close = nearest(part, public)
            raise UsageError(
                f"target {target}: {module} has no `{part}`"
                f"{close if 'did you mean' in close else '.'}"
            )
        found = getattr(found, part)
    return found


def _imported(target: str, module: str) -> Any:
    try:
        if module.endswith(".py"):
            return _of_file(Path(module))
        if str(Path.cwd()) not in sys.path and "" not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(module)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(f"target {target}: the import of {module} fails: {told(error)}") from error


def _of_file(path: Path) -> Any:
    if not path.is_file():
        raise UsageError(f"target {path}: no such file.")
    # Other files beside it can be imported, as if Python had started it.
    sys.path.insert(0, str(path.parent.absolute()))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def told(error: BaseException) -> str:
    """An error in one line: `ValueError: no such head size (model.py, line 12).`"""
    text = " ".join(str(error).split())
    text = text if len(text) <= 300 else f"{text[:300]}..."
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"{said.rstrip('.')}{_where(error)}."


def _where(error: BaseException) -> str:
    """The innermost line that is neither torch's nor ours."""
    where = ""
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(_NOT_THE_USERS):
            where = f" ({Path(file).name}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return where


_NOT_THE_USERS = (
    "<",
    str(Path(torch.__file__).parent),
    str(Path(__file__).parent),
    str(Path(contextlib.__file__)),
    str(Path(importlib.__file__ or "").parent),
)
"""Where files lie, or made-up names of files, that say nothing to whoever wrote a component."""
