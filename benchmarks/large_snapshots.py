# SPDX-License-Identifier: Apache-2.0
"""How fast, and in how much memory, large allocator snapshots are read; Python's own reader beside.

    python benchmarks/large_snapshots.py FOLDER
    python benchmarks/large_snapshots.py FOLDER --megabytes 3000 --ours

Makes FOLDER, writes snapshots into it (`snapshot_maker.py`) and removes both again. Prints a
Markdown table: seconds that the processor worked, and the largest resident size. Python's
`pickle.load`, with which torch's _memory_viz begins, needs ten times the size of the file: `--ours`
leaves it out.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from snapshot_maker import write_snapshot

OURS = [sys.executable, "-m", "megatron.torch_trace", "memory", "--json"]
PICKLE = [sys.executable, "-c", "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))"]


def measured(command: list[str]) -> tuple[float, float]:
    """Seconds of the processor and MiB of a command.

    Raises:
        SystemExit: it failed.
    """
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[30, 300])
    parser.add_argument("--ours", action="store_true", help="without Python's own reader")
    arguments = parser.parse_args()
    try:
        arguments.folder.mkdir(parents=True)
    except OSError as error:
        parser.error(f"{arguments.folder}: {error.strerror}; name a folder that does not exist")
    print("| snapshot | entries | read by | CPU s | MiB |\n|---|---|---|---|---|")
    for megabytes in arguments.megabytes:
        path = arguments.folder / f"{megabytes}.memory_snapshot.pickle"
        entries = write_snapshot(path, megabytes * 1_000_000)
        readers = {"torch-trace memory": OURS, "pickle.load": PICKLE}
        for name, command in readers.items():
            if name == "pickle.load" and arguments.ours:
                continue
            seconds, mebibytes = measured([*command, str(path)])
            print(
                f"| {megabytes} MB | {entries:,} | {name} | {seconds:.1f} | {mebibytes:,.0f} |",
                flush=True,
            )
        path.unlink()
    arguments.folder.rmdir()


if __name__ == "__main__":
    main()
