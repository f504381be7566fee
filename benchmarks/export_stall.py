# SPDX-License-Identifier: Apache-2.0
"""How long does writing a trace hold training? torch's own handler, `sync` and `background`.

    python benchmarks/export_stall.py                                         CPU or GPU
    python benchmarks/export_stall.py --layers 24 --micro-batches 32 --stacks
    python benchmarks/export_stall.py --options                               what each flag costs

One process profiles one step of a transformer and exports it: first with
`tensorboard_trace_handler(use_gzip=True)`, as Megatron and its forks use it, then with ours, while
it goes on training. Held is what the training loop did not get beyond the profiler's own stop.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from megatron.torch_profile.export.background import Exporter
from megatron.torch_profile.export.endings import Ending
from megatron.torch_profile.export.own_process import resident_bytes
from megatron.torch_profile.export.trace_export import Export
from megatron.torch_profile.plan.schedule import Window
from megatron.torch_trace.format.file_names import TraceName

if TYPE_CHECKING:
    from rich.console import Console

OPTIONS = ("record_shapes", "profile_memory", "with_flops", "with_stack")


class Block(torch.nn.Module):
    """One transformer layer, with the many small operators that Megatron's has."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(hidden), torch.nn.LayerNorm(hidden)
        self.qkv, self.proj = torch.nn.Linear(hidden, 3 * hidden), torch.nn.Linear(hidden, hidden)
        self.fc1, self.fc2 = (
            torch.nn.Linear(hidden, 4 * hidden),
            torch.nn.Linear(4 * hidden, hidden),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        weights = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)
        x = x + torch.nn.functional.dropout(self.proj(weights @ v), 0.1)
        return x + torch.nn.functional.dropout(
            self.fc2(torch.nn.functional.gelu(self.fc1(self.norm2(x)))), 0.1
        )


class Training:
    """A training step, on every rank."""

    def __init__(self, options: argparse.Namespace, device: str) -> None:
        self.model: Any = torch.nn.Sequential(
            *[Block(options.hidden) for _ in range(options.layers)]
        )
        self.model.to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), foreach=False)
        self.data = torch.randn(2, options.sequence, options.hidden, device=device)
        self.micro_batches = options.micro_batches

    def step(self) -> None:
        for _ in range(self.micro_batches):
            self.model(self.data).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def profile(training: Training, **options: bool) -> tuple[Any, float]:
    """A stopped profiler that holds one step, and the seconds that its stop took."""
    profiler = torch.profiler.profile(**options)
    profiler.prepare_trace()
    training.step()
    profiler.start_trace()
    with torch.profiler.record_function("ProfilerStep#1"):
        training.step()
    began = time.perf_counter()
    profiler.stop_trace()
    return profiler, time.perf_counter() - began


def with_torch(profiler: Any, folder: Path) -> dict[str, float]:
    """As `torch.profiler.tensorboard_trace_handler(folder, use_gzip=True)` does it."""
    began = time.perf_counter()
    torch.profiler.tensorboard_trace_handler(str(folder), use_gzip=True)(profiler)
    held = time.perf_counter() - began
    (file,) = folder.glob("*.json.gz")
    return {"held": held, "complete": held, "file": file.stat().st_size}


def with_ours(profiler: Any, folder: Path, mode: str, training: Training) -> dict[str, float]:
    """Hand over, and train on until the file is complete."""
    exporter = Exporter(600)
    what = Export(0, Window(1, 1, 1), (1,), folder, TraceName(0, 1))
    began = time.perf_counter()
    ending = Ending.TRAINING if mode == "sync" else Ending.FORK
    exporter.hand_over(profiler, what, ending, stop_seconds=0, expected_mb=0, writers=1)
    held = time.perf_counter() - began
    while exporter.in_flight:
        training.step()
        exporter.poll()
    written = exporter.last
    assert written is not None
    return {
        "held": held,
        "complete": time.perf_counter() - began,
        "file": written.file_bytes,
        "raw": written.raw_bytes,
        "events": written.events,
    }


def compare_modes(training: Training, options: argparse.Namespace, console: Console) -> None:
    """torch's own export, sync and background, on three profiles of the same step."""
    from rich.table import Table

    table = Table(title="one trace, written while training goes on")
    for name in ("", "stop s", "held s", "file complete s", "raw MB", "file MB", "ratio to torch"):
        table.add_column(name, justify="right" if name else "left")
    rows: list[tuple[str, float, dict[str, float]]] = []
    for mode in ("torch .json.gz", "sync", "background"):
        profiler, stop = profile(training, with_stack=options.stacks)
        folder = Path(tempfile.mkdtemp(dir=options.folder))
        if mode.startswith("torch"):
            rows.append((mode, stop, with_torch(profiler, folder)))
        else:
            rows.append((mode, stop, with_ours(profiler, folder, mode, training)))
        shutil.rmtree(folder)
    raw = rows[-1][2]["raw"]
    for mode, stop, row in rows:
        table.add_row(
            mode,
            f"{stop:.2f}",
            f"{row['held']:.3f}",
            f"{row['complete']:.1f}",
            f"{raw / 1e6:.0f}",
            f"{row['file'] / 1e6:.1f}",
            f"1/{rows[0][2]['held'] / row['held']:.0f}",
        )
    console.print(table)
    console.print(f"{rows[-1][2]['events']:,} events")


def compare_options(training: Training, options: argparse.Namespace, console: Console) -> None:
    """What each profiler option adds to the stop, to the trace and to memory."""
    from rich.table import Table

    table = Table(title="what each flag costs")
    for name in ("flags", "step s", "stop s", "raw MB", "held in memory MB"):
        table.add_column(name, justify="left" if name == "flags" else "right")
    for chosen in [(), *[(o,) for o in OPTIONS], OPTIONS]:
        resident = resident_bytes()
        began = time.perf_counter()
        profiler, stop = profile(training, **dict.fromkeys(chosen, True))
        step = time.perf_counter() - began - stop
        grown = resident_bytes() - resident
        path = Path(options.folder or tempfile.gettempdir()) / f"options-{os.getpid()}.json"
        profiler.export_chrome_trace(str(path))
        size = path.stat().st_size
        path.unlink()
        label = " + ".join(chosen) or "none"
        table.add_row(
            label, f"{step / 2:.2f}", f"{stop:.2f}", f"{size / 1e6:.0f}", f"{grown / 1e6:.0f}"
        )
        del profiler
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--sequence", type=int, default=64)
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--stacks", action="store_true", help="profile with Python stacks")
    parser.add_argument("--options", action="store_true", help="what each flag costs instead")
    parser.add_argument("--folder", help="where traces are written and removed again")
    options = parser.parse_args()
    from rich.console import Console

    cuda = torch.cuda.is_available()
    training = Training(options, "cuda" if cuda else "cpu")
    for _ in range(2):
        training.step()
    console = Console(width=110)
    device = torch.cuda.get_device_name() if cuda else f"CPU, {os.cpu_count()} cores"
    console.print(f"{device}, torch {torch.__version__}, {options}")
    (compare_options if options.options else compare_modes)(training, options, console)


if __name__ == "__main__":
    main()
