# SPDX-License-Identifier: Apache-2.0
"""What module and phase spans cost, beside nothing and beside Python stacks.

    python benchmarks/spans.py                                       all GPUs, data parallel
    python benchmarks/spans.py --nproc 4 --layers 24 --micro-batches 32
    python benchmarks/spans.py --nproc 2 -- --tensor-model-parallel-size 2

Launches the same training once for each row (`--times`: as often, and takes the best): raw size of
rank 0's trace, how long Kineto's stop held training, milliseconds of the recorded iteration and of
the iterations after the window. Prints a Markdown table, and whether all losses were the same.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

REPOSITORY = Path(__file__).resolve().parents[1]
ROWS = {
    "nothing": [],
    "--torch-profile-spans phases": ["--torch-profile-spans", "phases"],
    "--torch-profile-spans phases modules": ["--torch-profile-spans", "phases", "modules"],
    "--torch-profile-with-stack": ["--torch-profile-with-stack"],
}
WINDOW, LAST = 4, 12
_ITERATION = re.compile(r" iteration +(\d+)/.*?elapsed time per iteration \(ms\): ([\d.]+)")
_LOSS = re.compile(r" iteration +(\d+)/.*?lm loss: (\S+)")
_STOP = re.compile(r"rank 0 writes .*stop held training for ([\d.,]+) (us|ms|s)")
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


@dataclass(frozen=True)
class Row:
    """One launch: MB, seconds, milliseconds, and the loss of each iteration as printed."""

    raw_mb: float
    stop: float | None
    inside: float
    outside: float
    losses: tuple[tuple[str, str], ...]


def train(options: argparse.Namespace, flags: list[str], folder: Path) -> Row:
    """One launch with `flags`; its log is `folder`/train.log."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node", str(options.nproc), str(REPOSITORY / "pretrain_gpt.py"),
        "--num-layers", str(options.layers), "--hidden-size", str(options.hidden),
        "--num-attention-heads", "16", "--seq-length", str(options.sequence),
        "--max-position-embeddings", str(options.sequence), "--micro-batch-size", "2",
        "--global-batch-size", str(2 * options.micro_batches * options.data_parallel),
        "--train-iters", str(LAST), "--lr", "1e-4", "--bf16", "--mock-data",
        "--tokenizer-type", "NullTokenizer", "--vocab-size", "32000", "--log-interval", "1",
        "--eval-interval", "1000", "--eval-iters", "0",
        "--torch-profile", "--torch-profile-skip-first", str(WINDOW - 2),
        "--torch-profile-dir", str(folder),
        *flags, *options.megatron,
    ]  # fmt: skip
    environment = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "PYTHONWARNINGS": "ignore", **os.environ}
    log = folder / "train.log"
    with log.open("w") as out:
        status = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, env=environment)
    text = log.read_text()
    if status.returncode:
        sys.exit(f"{' '.join(flags) or 'nothing'}: exit {status.returncode}\n{text[-3000:]}")
    took = {int(number): float(ms) for number, ms in _ITERATION.findall(text)}
    stop = _STOP.search(text)
    return Row(
        raw_mb=_raw_bytes(next(folder.rglob("rank-0.pt.trace.json.gz"))) / 1e6,
        stop=float(stop[1].replace(",", "")) * _SECONDS[stop[2]] if stop else None,
        inside=took[WINDOW],
        # The first iteration after the window holds the stop.
        outside=statistics.median(ms for number, ms in took.items() if number > WINDOW + 1),
        losses=tuple(_LOSS.findall(text)),
    )


def _raw_bytes(trace: Path) -> int:
    with gzip.open(trace) as raw:
        return sum(len(block) for block in iter(lambda: raw.read(1 << 22), b""))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nproc", type=int, default=1)
    parser.add_argument("--data-parallel", type=int, default=1, help="size of data parallelism")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--sequence", type=int, default=1024)
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--rows", nargs="+", help="only these, as the table names them")
    parser.add_argument("megatron", nargs="*", help="after --: further arguments of Megatron")
    options = parser.parse_args()
    print("| | raw MB | profiler's stop s | recorded iteration ms | iterations outside ms |")
    print("|---|---|---|---|---|")
    losses = set()
    for label, flags in ROWS.items():
        if options.rows and label.removeprefix("--torch-profile-") not in options.rows:
            continue
        rows = []
        for _ in range(options.times):
            with tempfile.TemporaryDirectory() as folder, Console(stderr=True).status(label):
                rows.append(train(options, flags, Path(folder)))
        losses.update(row.losses for row in rows)
        row = min(rows, key=lambda row: row.stop or 0)
        stop = "unknown" if row.stop is None else f"{row.stop:.2f}"
        print(f"| {label} | {row.raw_mb:.1f} | {stop} | {row.inside:.0f} | {row.outside:.0f} |")
    same = "the same" if len(losses) == 1 else "NOT the same"
    print(f"\nLosses of all launches: {same}.")


if __name__ == "__main__":
    main()
