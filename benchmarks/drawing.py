# SPDX-License-Identifier: Apache-2.0
"""What drawing backward spans adds to compressing a trace, in seconds of the processor.

    python benchmarks/drawing.py TRACE [TRACE ...]

Each trace is compressed alone and with backward spans, in turns and in a process of its own each
time, as during training. Prints the least of the `--times` of both as a Markdown table.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from megatron.torch_profile.export.compression import DRAW_BACKWARD
from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.reader.bytestream import ByteStream

PROGRAM = [sys.executable, "-m", "megatron.torch_profile.export.compression"]


def compressed(raw: Path, text: bytes, *wanted: str) -> float:
    """Seconds of the processor that the program works.

    Raises:
        SystemExit: it failed.
    """
    raw.write_bytes(text)
    target = raw.with_name("rank-0.json.gz")
    command = [*PROGRAM, str(raw), str(target), "gzip", *wanted]
    # Modules are compiled once, as those of an installed package are.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(raw.with_name("compiled"))}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    target.unlink()
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("traces", type=Path, nargs="+", metavar="TRACE", help="plain or compressed")
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    print(
        "| trace | MB raw | compressing alone, CPU s | with drawing | more |\n|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "raw.json"
        for trace in options.traces:
            try:
                text = b"".join(ByteStream(trace))
            except UsageError as error:
                raise SystemExit(f"drawing.py: {error}") from None
            if b'"traceEvents"' not in text:
                raise SystemExit(f"drawing.py: {trace}: is no trace; name one of torch.profiler.")
            took: dict[tuple[str, ...], list[float]] = {(): [], (DRAW_BACKWARD,): []}
            for _ in range(options.times):
                for wanted, seconds in took.items():
                    seconds.append(compressed(raw, text, *wanted))
            alone, drawn = (min(seconds) for seconds in took.values())
            more = f"{100 * (drawn / alone - 1):.0f} %"
            print(
                f"| {trace} | {len(text) / 1e6:.0f} | {alone:.2f} | {drawn:.2f} | {more} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
