# SPDX-License-Identifier: Apache-2.0
"""A file as it was when the server was told of it, and never what its name leads to later.

Whoever may write the folder of a trace could replace it by a link to a file that only the user of
the server can read. So the folder is opened once; the file is opened below it by its name, without
following links, and answered only if it is the same one.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO
from weakref import WeakValueDictionary

# A folder may be searched without being readable; a pipe must not hold the server.
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _Folder:
    """A folder that stays the same one, whatever its path leads to later."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, _FOLDER)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


_folders: WeakValueDictionary[Path, _Folder] = WeakValueDictionary()
"""A thousand traces of one folder must not take a thousand descriptors."""


class ServedFile:
    """One file. Links in its path are followed once, here.

    Args:
        path: the file.
        below: a folder that the file must lie in wherever links lead; None for anywhere.

    Raises:
        OSError: there is no such regular file, or it lies elsewhere.
    """

    def __init__(self, path: Path, below: Path | None = None) -> None:
        found = path.resolve(strict=True)
        if below is not None and not found.is_relative_to(below.resolve()):
            raise PermissionError(f"{path}: leads out of {below}")
        self.path = path
        self._name = found.name
        self._folder = _folders.get(found.parent) or _Folder(found.parent)
        _folders[found.parent] = self._folder
        self._identity = _identity(self._status())

    def size(self) -> int | None:
        """Bytes; None if the file is not there any more."""
        try:
            status = self._status()
            return status.st_size if _identity(status) == self._identity else None
        except OSError:
            return None

    def open(self) -> BinaryIO:
        """The file, for reading.

        Raises:
            OSError: another one, a link, or nothing has its name now.
        """
        descriptor = os.open(self._name, _FILE, dir_fd=self._folder.descriptor)
        try:
            if _identity(os.fstat(descriptor)) != self._identity:
                raise FileNotFoundError(f"{self.path}: has been replaced")
            return os.fdopen(descriptor, "rb")
        except OSError:
            os.close(descriptor)
            raise

    def _status(self) -> os.stat_result:
        return os.stat(self._name, dir_fd=self._folder.descriptor, follow_symlinks=False)


def _identity(status: os.stat_result) -> tuple[int, int]:
    if not stat.S_ISREG(status.st_mode):
        raise FileNotFoundError("not a regular file")
    return status.st_dev, status.st_ino
