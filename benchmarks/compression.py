# SPDX-License-Identifier: Apache-2.0
"""Which compression for a trace that training has just left? Size and speed, in one run.

    python benchmarks/compression.py TRACE        a raw or compressed trace

Speed is by processor time of this process; torch's own export is gzip at level 9.
"""

from __future__ import annotations

import argparse
import gzip
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import zstandard
from isal import igzip
from rich.console import Console
from rich.table import Table
from zlib_ng import gzip_ng

from megatron.torch_trace.reader.bytestream import ByteStream

CHUNK = 1 << 20
WRITERS: dict[str, Callable[[Path], Any]] = {
    "gzip 9 (torch)": partial(gzip.GzipFile, mode="wb", compresslevel=9),
    "gzip 6": partial(gzip.GzipFile, mode="wb", compresslevel=6),
    "zlib-ng 3": lambda path: gzip_ng.open(path, "wb", compresslevel=3),
    "zlib-ng 5": lambda path: gzip_ng.open(path, "wb", compresslevel=5),
    "zlib-ng 6": lambda path: gzip_ng.open(path, "wb", compresslevel=6),
    "isal 2": lambda path: igzip.open(path, "wb", compresslevel=2),
    "isal 3": lambda path: igzip.open(path, "wb", compresslevel=3),
    "zstd 3": lambda path: zstandard.open(path, "wb", cctx=zstandard.ZstdCompressor(level=3)),
    "zstd 6": lambda path: zstandard.open(path, "wb", cctx=zstandard.ZstdCompressor(level=6)),
}


def measure(data: bytes, open_writer: Callable[[Path], Any], path: Path) -> tuple[int, float]:
    """Size in bytes and seconds of processor time."""
    began = time.process_time()
    with open_writer(path) as sink:
        for start in range(0, len(data), CHUNK):
            sink.write(data[start : start + CHUNK])
    return path.stat().st_size, time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trace", metavar="TRACE", help="a raw or compressed trace")
    trace = parser.parse_args().trace
    data = b"".join(ByteStream(trace))
    table = Table(title=f"{trace}: {len(data) / 1e6:.0f} MB raw")
    for name in ("", "MB", "ratio", "MB/s"):
        table.add_column(name, justify="right" if name else "left")
    with tempfile.TemporaryDirectory() as folder:
        for name, writer in WRITERS.items():
            size, seconds = measure(data, writer, Path(folder) / "out")
            speed = len(data) / 1e6 / seconds
            table.add_row(name, f"{size / 1e6:.1f}", f"{len(data) / size:.1f}", f"{speed:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
