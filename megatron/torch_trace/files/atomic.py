# SPDX-License-Identifier: Apache-2.0
"""A file appears under its name only when it is whole, and never over another by accident.

It is written beside its target as `<name>.<host>.<pid>.tmp`, so that no two processes of a shared
file system write one file, then renamed to its name in one step.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from megatron.torch_trace.format.suffixes import TEMPORARY_SUFFIX
from megatron.torch_trace.system import leftovers

_LONGEST_NAME = 255
"""Bytes that file systems allow in a name."""
_numbers = count()


@contextmanager
def atomic_path(target: Path, *, replace: bool = True) -> Iterator[Path]:
    """A path to write to, which becomes `target` at the end, or is removed after an error.

    Args:
        target: in a folder that is there.
        replace: take the place of a file that is there; else it stays.

    Raises:
        FileExistsError: without `replace`, a file of that name has appeared meanwhile.
        OSError: the file cannot get its name.
    """
    with leftovers.temporary(_beside(target, "")) as unfinished:
        yield unfinished
        if replace:
            unfinished.replace(target)
        else:
            finish(unfinished, target)


@contextmanager
def working_folder(target: Path) -> Iterator[Path]:
    """A folder on the disk of `target`, which may be a file or a folder to be; removed again.

    Raises:
        OSError: it cannot be made.
    """
    path = _beside(target, f"{next(_numbers)}.")
    with leftovers.temporary(path.with_name(f".{path.name}"[-_LONGEST_NAME:])) as folder:
        folder.mkdir()
        yield folder


def _beside(target: Path, number: str) -> Path:
    ending = f".{os.uname().nodename}.{os.getpid()}.{number}".rstrip(".") + TEMPORARY_SUFFIX
    name = os.fsencode(target.name)[: _LONGEST_NAME - 1 - len(ending)]
    return target.with_name(name.decode("utf-8", "ignore") + ending)


def finish(unfinished: Path, target: Path) -> None:
    """Give a file that is whole its name too; one of that name stays.

    Raises:
        FileExistsError: there is one.
        OSError: it cannot be put there.
    """
    try:
        # Refuses in one step a target that is there, which a rename would replace.
        os.link(unfinished, target)
    except FileExistsError:
        raise
    except OSError:
        # Not every file system knows hard links.
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        unfinished.replace(target)
