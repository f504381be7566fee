# SPDX-License-Identifier: Apache-2.0
"""What a path names: a file, a folder, or why neither."""

from __future__ import annotations

import errno
import stat
from pathlib import Path


def is_file(path: Path) -> bool:
    """As `Path.is_file`, which raises where a folder above may not be looked into."""
    try:
        return path.is_file()
    except OSError:
        return False


def is_folder(path: Path) -> bool:
    """As `Path.is_dir`, likewise."""
    try:
        return path.is_dir()
    except OSError:
        return False


def absence(path: Path) -> str:
    """Why what a user named is neither a file nor a folder, in words."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        if path.is_symlink():
            loops = error.errno == errno.ELOOP
            return (
                "is a link that leads back to itself"
                if loops
                else "is a link to a file that does not exist"
            )
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return "no such file or folder"
        return f"cannot be read ({error.strerror})"
    if stat.S_ISFIFO(mode):
        return "is a pipe, which can be read only once; name - and pass the trace as standard input"
    return f"is {'a socket' if stat.S_ISSOCK(mode) else 'a device'}, and no trace"
