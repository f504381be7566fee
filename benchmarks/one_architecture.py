# SPDX-License-Identifier: Apache-2.0
"""Makes a CUDA library small enough to carry: code of other GPUs becomes zeros, in place.

    python benchmarks/one_architecture.py libtransformer_engine.so --keep 90
    zstd -19 --long=27 libtransformer_engine.so        # 343 MB, of which 23 MB are left

The library stays as long as it is, and its headers stay, so it loads; on another GPU than those
that are kept it has no code. For a machine that gets files in small pieces only.

A fat binary is a header (magic, version, its own size, size of all entries) and entries, each with
a header (kind, version, its own size, size of what follows, ..., at byte 28 the architecture) and
code. NVIDIA does not document this; `cuobjdump --list-elf` shows the same entries.
"""

from __future__ import annotations

import argparse
import mmap
import struct
from collections import Counter
from pathlib import Path

_MAGIC = struct.pack("<I", 0xBA55ED50)
_HEADER, _ENTRY, _ARCHITECTURE = struct.Struct("<4xHHQ"), struct.Struct("<HHIQ"), 28
_BINARY = 2
"""The kind of an entry that is machine code; 1 is PTX."""
_MOST_HEADER = 4096


def keep_only(library: mmap.mmap, kept: frozenset[int]) -> Counter[int]:
    """Overwrite code of other architectures.

    Args:
        library: open for writing.
        kept: architectures, such as 90 for Hopper.

    Returns:
        Bytes that were overwritten, by architecture.
    """
    gone: Counter[int] = Counter()
    at = library.find(_MAGIC)
    while at >= 0:
        if at + _HEADER.size > len(library):
            break
        _, own, size = _HEADER.unpack_from(library, at)
        end = at + own + size
        if own != _HEADER.size or end > len(library):  # the same four bytes by chance
            at = library.find(_MAGIC, at + 1)
            continue
        entry = at + own
        while entry + _ARCHITECTURE + 4 <= end:
            kind, _, before, length = _ENTRY.unpack_from(library, entry)
            if not _ENTRY.size < before <= _MOST_HEADER or entry + before + length > end:
                break
            (architecture,) = struct.unpack_from("<I", library, entry + _ARCHITECTURE)
            if kind != _BINARY or architecture not in kept:
                library[entry + before : entry + before + length] = bytes(length)
                gone[architecture] += length
            entry += before + length
        at = library.find(_MAGIC, end)
    return gone


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path, help="a library; it is changed in place: give a copy")
    parser.add_argument("--keep", nargs="+", type=int, required=True, help="such as 90")
    words = parser.parse_args()
    if not words.file.is_file() or not words.file.stat().st_size:
        parser.error(f"{words.file}: no such file, or empty; name a library of CUDA code")
    with words.file.open("r+b") as file, mmap.mmap(file.fileno(), 0) as library:
        gone = keep_only(library, frozenset(words.keep))
    for architecture, size in sorted(gone.items()):
        print(f"sm_{architecture}: {size / 1e6:.1f} MB are zeros now")
    if not gone:
        print(f"{words.file}: holds no code of another GPU; nothing was changed")


if __name__ == "__main__":
    main()
