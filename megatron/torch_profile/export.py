# SPDX-License-Identifier: Apache-2.0
"""The trace leaves the process: raw save by Kineto, compression in one streaming pass, rename.

torch's own `.json.gz` export writes the raw trace to $TMPDIR, reads it back and compresses it with
Python's gzip at level 9. Here the raw file lies beside the target, where the space is, and isal
compresses several times faster to about the same size.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from megatron.torch_profile.log import logger
from megatron.torch_profile.schedule import Window
from megatron.torch_trace.errors import TorchTraceError
from megatron.torch_trace.layout import TEMPORARY_SUFFIX, TraceName

_CHUNK = 1 << 20
_MB = 1_000_000
_KEY_AVERAGES_ROWS = 200


@dataclass(frozen=True, slots=True)
class Export:
    """One trace on its way out.

    Args:
        rank: for the log.
        window: what was recorded.
        folder: the window's folder; made if missing.
        name: the trace's name in it.
        key_averages, stacks: which artifacts to write too.
    """

    rank: int
    window: Window
    folder: Path
    name: TraceName
    key_averages: bool = False
    stacks: bool = False


def export(profiler: Any, what: Export) -> Path:
    """Write a stopped profiler's trace and artifacts; training waits meanwhile.

    Args:
        profiler: a `torch.profiler.profile` whose trace is stopped and not yet saved.

    Returns:
        The trace's path.

    Raises:
        OSError: the file could not be written.
        TorchTraceError: Kineto wrote no whole JSON document.
    """
    started = time.perf_counter()
    target = what.folder / str(what.name)
    if target.exists():
        raise TorchTraceError(f"{target} exists, and traces are never overwritten")
    what.folder.mkdir(parents=True, exist_ok=True)
    raw = target.with_name(f"{what.name.stem}.{os.getpid()}.json{TEMPORARY_SUFFIX}")
    profiler.export_chrome_trace(str(raw))
    raw_bytes = check_whole(raw)
    compress(raw, target, what.name.compression)
    _write_artifacts(profiler, what)
    logger.info(
        "rank %d wrote %s: %.1f MB (%.1f MB raw), iterations %s, training waited %.1f s",
        what.rank,
        target,
        target.stat().st_size / _MB,
        raw_bytes / _MB,
        what.window,
        time.perf_counter() - started,
    )
    return target


def check_whole(raw: Path) -> int:
    """Size of a JSON document in bytes, refused if it does not begin and end as one.

    Kineto can report success and leave an empty file (pytorch/pytorch#167707).
    """
    size = raw.stat().st_size
    with raw.open("rb") as file:
        head = file.read(16).lstrip()
        file.seek(max(0, size - 16))
        tail = file.read().rstrip()
    if not head.startswith(b"{") or not tail.endswith(b"}"):
        raise TorchTraceError(f"{raw} is no whole trace ({size} bytes); it was left where it is")
    return size


def compress(raw: Path, target: Path, compression: str) -> None:
    """Stream `raw` into `target`, which appears under its name only when complete; then drop raw.

    Args:
        compression: gzip, zstd or none.
    """
    temporary = target.with_name(f"{target.name}{TEMPORARY_SUFFIX}")
    if compression == "none":
        raw.replace(target)
        return
    with raw.open("rb") as source, _WRITERS[compression](temporary) as sink:
        shutil.copyfileobj(source, sink, _CHUNK)
    temporary.replace(target)
    raw.unlink()


def _gzip(path: Path) -> IO[bytes]:
    from isal import igzip

    writer: IO[bytes] = igzip.open(path, "wb", compresslevel=2)
    return writer


def _zstd(path: Path) -> IO[bytes]:
    import zstandard

    writer: IO[bytes] = zstandard.open(path, "wb", cctx=zstandard.ZstdCompressor(level=3))
    return writer


_WRITERS: dict[str, Callable[[Path], IO[bytes]]] = {"gzip": _gzip, "zstd": _zstd}


def _write_artifacts(profiler: Any, what: Export) -> None:
    if not (what.key_averages or what.stacks):
        return
    device = "device" if profiler.use_device else "cpu"
    (what.folder / what.name.artifact("x")).parent.mkdir(exist_ok=True)
    if what.key_averages:
        path = what.folder / what.name.artifact("key_averages.txt")
        table = profiler.key_averages().table(
            sort_by=f"self_{device}_time_total", row_limit=_KEY_AVERAGES_ROWS
        )
        path.write_text(f"{table}\n")
    if what.stacks:
        path = what.folder / what.name.artifact("stacks.txt")
        metric = "self_cuda_time_total" if profiler.use_device else "self_cpu_time_total"
        profiler.export_stacks(str(path), metric)
