# SPDX-License-Identifier: Apache-2.0
"""Every `--torch-profile*` flag: one field is one flag, its default and its help.

`TorchProfileConfig.ranks` is the flag `--torch-profile-ranks` and the argument
`torch_profile_ranks` in Megatron's namespace; `arguments.py` makes the translation. To add a flag,
add a field here: the parser, `--help`, run.json and the documentation's table follow.

The first twelve flags are the family that users already have in their launch scripts (the
okoge-kaz/Megatron-LM fork introduced them); their names, types and defaults never change.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

FLAG = "--torch-profile"

PRESETS: dict[str, dict[str, Any]] = {
    "light": {"no_operators": True, "spans": ["phases"]},
    "overlap": {"spans": ["phases"], "key_averages": True},
    "modules": {"spans": ["phases", "modules"], "record_shapes": True, "key_averages": True},
    "memory": {"profile_memory": True, "record_shapes": True, "with_stack": True},
    "full": {
        "record_shapes": True,
        "profile_memory": True,
        "with_stack": True,
        "with_flops": True,
        "spans": ["phases", "modules"],
        "key_averages": True,
    },
}
"""What `--torch-profile-preset NAME` switches on. A preset never switches anything off."""


def flag(default: Any, help: str, **argparse: Any) -> Any:  # noqa: A002
    """A field that is a flag: its default, its help, and what argparse needs beside these."""
    if isinstance(default, list):
        return field(
            default_factory=lambda: list(default), metadata={"help": help, "argparse": argparse}
        )
    return field(default=default, metadata={"help": help, "argparse": argparse})


@dataclass(frozen=True, kw_only=True)
class TorchProfileConfig:
    """What the user asked for, before anything about the run is known.

    Iterations are Megatron's: one is one optimizer step, numbered from 1 over the whole training.
    """

    enabled: bool = flag(
        False,
        "Record torch.profiler traces of this run. All other --torch-profile-* flags need this "
        "flag.",
    )
    ranks: list[str] = flag(
        ["0"],
        "Ranks to profile: numbers (0 1), ranges (0-7, 8-63:8), all, last, parallel coordinates "
        "(tp=0,dp=0 is every pipeline stage of one model copy; pp=first, pp=last), per-node.",
        nargs="+",
        metavar="R",
    )
    wait: int = flag(0, "Iterations without profiling at the start of every cycle.", metavar="N")
    warmup: int = flag(
        1, "Iterations of a cycle in which the profiler runs and keeps nothing.", metavar="N"
    )
    active: int = flag(1, "Iterations of a cycle that are recorded into one trace.", metavar="N")
    repeat: int = flag(
        1, "Cycles of wait, warmup and active; 0 repeats until the end of training.", metavar="N"
    )
    skip_first: int = flag(
        1,
        "Iterations to skip before the first cycle, counted from the first iteration of this "
        "process, so after a resume too.",
        metavar="N",
    )
    record_shapes: bool = flag(False, "Record the shapes of operator inputs.")
    profile_memory: bool = flag(False, "Record allocations and frees of tensor memory.")
    with_stack: bool = flag(
        False,
        "Record Python stacks. Traces, and the profiler's stop at the end of a window, grow about "
        "four times.",
    )
    with_flops: bool = flag(
        False,
        "Record FLOPs of the operators that torch has a formula for (matrix products, "
        "convolutions, mul, add; no attention): a lower bound, not the model's FLOPs.",
    )
    with_modules: bool = flag(
        False,
        "Name modules in the trace, as --torch-profile-spans modules does. (torch's own "
        "with_modules does nothing in eager mode.)",
    )
    dir: str | None = flag(
        None,
        "Folder for traces; every launch gets a folder of its own in it. Default: "
        "--tensorboard-dir, else ./torch_profile.",
        metavar="DIR",
    )
    iterations: list[str] | None = flag(
        None,
        "Record these global iterations (A-B or A, several allowed) instead of cycles; "
        "--torch-profile-warmup iterations before each range are warm-up.",
        nargs="+",
        metavar="A-B",
    )
    skip_first_wait: bool = flag(False, "Leave out the wait of the first cycle.")
    frequency: int | None = flag(
        None,
        "Length of a cycle in iterations: the wait is the cycle without its warm-up and active "
        "iterations. Replaces --torch-profile-wait.",
        metavar="N",
    )
    activities: list[str] = flag(
        ["cpu", "cuda"], "What to record.", nargs="+", choices=["cpu", "cuda"]
    )
    no_operators: bool = flag(
        False,
        "Record no operators of the thread that trains: GPU work and its launches, collectives "
        "with their arguments, steps and spans. Slows the recorded iterations least.",
    )
    spans: list[str] | None = flag(
        None,
        "Give names in the trace to what Megatron does: phases (micro-batches, timers, optimizer, "
        "logging, evaluation), modules (forward, backward and recomputation of each module, "
        "such as 'decoder.layers.3.mlp: MLP'), sections (what Megatron marks for Nsight).",
        nargs="+",
        choices=["phases", "modules", "sections"],
    )
    spans_depth: int | None = flag(
        None,
        "Deepest module path that gets a span (decoder.layers.3 has depth 3). Default: all "
        "modules.",
        metavar="N",
    )
    export: str = flag(
        "background",
        "Who stops the profiler and writes the trace. background: a thread, while training goes on "
        "(where torch does not allow that, training stops the profiler and a forked process "
        "writes). sync: training itself, which is held until the raw file is written; another "
        "process compresses the file.",
        choices=["background", "sync"],
    )
    exit_timeout: int = flag(
        600, "Seconds that the end of the process waits for traces to be written.", metavar="N"
    )
    scratch_dir: str | None = flag(
        None,
        "Folder on the node for traces that are being written; only finished, compressed files go "
        "to --torch-profile-dir.",
        metavar="DIR",
    )
    max_trace_mb: int | None = flag(
        None,
        "End a window early when its raw trace would grow past N MB (an estimate), and write what "
        "is recorded.",
        metavar="N",
    )
    compression: str = flag("gzip", "Compression of the traces.", choices=["gzip", "zstd", "none"])
    key_averages: bool = flag(
        False, "Also write the table of operators, sorted by their own time, as text."
    )
    stacks: bool = flag(
        False,
        "Also write stacks for flame graphs, weighted by their own time. Needs "
        "--torch-profile-with-stack.",
    )
    execution_trace: bool = flag(
        False, "Also write torch's execution trace of each window, for Chakra and for replay."
    )
    summary: str = flag(
        "auto",
        "Analyse every window beside training and log where its time went to W&B, TensorBoard and "
        "metrics.jsonl. auto: if there is W&B or TensorBoard and a GPU is recorded.",
        choices=["auto", "always", "never"],
    )
    partials: str = flag(
        "auto",
        "Analyse every trace beside training, with the lowest priority, and keep the analysis "
        "beside the trace, so that torch-trace analyze need not read the trace. auto: if a GPU is "
        "recorded.",
        choices=["auto", "always", "never"],
    )
    wandb_artifacts: bool = flag(
        False,
        "Also log the traces as an artifact of the W&B run: files up to 500 MB, 2 GB for each "
        "window.",
    )
    memory_snapshot: bool = flag(
        False,
        "Keep the allocator's history while a window is recorded, and write a snapshot of each "
        "profiled rank beside its trace, for torch-trace memory and pytorch.org/memory_viz.",
    )
    memory_snapshot_entries: int = flag(
        200_000,
        "Longest history of a memory snapshot: allocations and frees; older ones are forgotten.",
        metavar="N",
    )
    memory_snapshot_stacks: str = flag(
        "python",
        "Call stacks in a memory snapshot: python, all (with C++: a file three times as large), "
        "none.",
        choices=["python", "all", "none"],
    )
    memory_timeline: bool = flag(
        False,
        "A memory snapshot with the names of iterations, micro-batches and phases in it, so that "
        "torch-trace memory shows memory by category over the window.",
    )
    on_oom: bool = flag(
        False,
        "When a GPU has no memory for a request: say what was asked, who holds memory and what to "
        "try, and write a memory snapshot, on every profiled rank.",
    )
    trigger: list[str] | None = flag(
        None,
        "Record another window when somebody asks for it while training runs: file (torch-trace "
        "trigger RUN), signal (SIGUSR2 to any rank). Or when an iteration is slow: slow-iteration.",
        nargs="+",
        choices=["file", "signal", "slow-iteration"],
    )
    trigger_factor: float = flag(
        1.5, "An iteration is slow if it takes K times the median of the last 100.", metavar="K"
    )
    trigger_windows: int = flag(3, "Windows that slow iterations may ask for.", metavar="N")
    trigger_apart: int = flag(600, "Seconds between two of these windows.", metavar="SECONDS")
    trigger_ranks: list[str] | None = flag(
        None,
        "Ranks to record for a slow iteration, in words of --torch-profile-ranks; or slowest: the "
        "rank that the monitor has seen to be slowest. Default: the ranks of the plan.",
        nargs="+",
        metavar="R",
    )
    monitor: bool = flag(
        False, "Measure the parts of every iteration on all ranks, and say which rank is slow."
    )
    monitor_interval: int = flag(50, "Iterations between two lines of numbers.", metavar="N")
    on_hang: float | None = flag(
        None,
        "When no iteration has ended for SECONDS, have every rank write where it is, for "
        "torch-trace hang RUN. Evaluation and checkpoints do not count.",
        metavar="SECONDS",
    )
    preset: str | None = flag(
        None,
        "Switch on a common set of flags: light (no operators: slows recorded iterations least), "
        "overlap (what runs beside communication), modules (which module costs what), memory "
        "(what allocates memory), full (all of the last three).",
        choices=list(PRESETS),
    )
    help: bool = flag(False, "Print the help of these flags only, and exit.")

    def with_preset(self) -> TorchProfileConfig:
        """The same configuration with what its preset switches on."""
        if not self.preset:
            return self
        switched_on = dict(PRESETS[self.preset])
        if self.spans and "spans" in switched_on:
            switched_on["spans"] = sorted({*self.spans, *switched_on["spans"]})
        return replace(self, **switched_on)

    @property
    def watches(self) -> bool:
        """Whether every iteration is looked at, in or out of windows."""
        return self.monitor or self.on_hang is not None or "slow-iteration" in (self.trigger or ())

    @property
    def wanted_spans(self) -> frozenset[str]:
        """Kinds of spans, however they were asked for."""
        implied = ["modules"] if self.with_modules else []
        implied += ["phases"] if self.memory_timeline else []
        return frozenset([*(self.spans or []), *implied])

    @property
    def draws_backward(self) -> bool:
        """Whether backward spans of modules are drawn into the finished trace, from its operators:
        hooks for them would cost training several times what forward spans do."""
        return "modules" in self.wanted_spans and not self.no_operators

    @property
    def records_history(self) -> bool:
        """Whether windows have a memory snapshot."""
        return self.memory_snapshot or self.memory_timeline


def flag_of(field_name: str) -> str:
    """The flag of a field: `skip_first` -> `--torch-profile-skip-first`."""
    return FLAG if field_name == "enabled" else f"{FLAG}-{field_name.replace('_', '-')}"


def argument_of(field_name: str) -> str:
    """The argument of a field in Megatron's namespace: `ranks` -> `torch_profile_ranks`."""
    return "torch_profile" if field_name == "enabled" else f"torch_profile_{field_name}"
