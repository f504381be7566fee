# SPDX-License-Identifier: Apache-2.0
"""How many iterations a training has that is told in samples, as Megatron counts them.

The sizes of batches may grow: by `--rampup-batch-size` up to megatron-core 0.18 (0.19 ignores that
flag), by `--step-batch-size-schedule` since 0.19.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from megatron.torch_trace.errors import UsageError

_SUFFIXES = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def flag(args: Any) -> str:
    """The flag of Megatron that says where training ends, as it was given; for messages."""
    samples = getattr(args, "train_samples", None)
    return f"--train-samples {samples}" if samples else f"--train-iters {args.train_iters}"


def batch_grows(args: Any) -> bool:
    """Whether iterations differ in their number of samples, so that none is like all others."""
    flags = ("rampup_batch_size", "step_batch_size_schedule")
    return any(getattr(args, flag, None) for flag in flags)


def of_samples(samples: int, batch: int) -> int:
    """Iterations of one size of batch; Megatron drops the last one if it is not full."""
    return samples // batch


def of_ramp(samples: int, batch: int, ramp: Sequence[int]) -> int:
    """Iterations while the batch grows, and of the full batch after them.

    Args:
        samples: `--train-samples`.
        batch: `--global-batch-size`.
        ramp: `--rampup-batch-size`: first batch, increment, samples until the full batch.

    Raises:
        UsageError: no batch can grow so.
    """
    start, increment, growing = ramp
    if min(start, increment) < 1 or growing < 0 or start >= batch or (batch - start) % increment:
        raise UsageError(
            f"--rampup-batch-size {start} {increment} {growing}: from {start} the batch cannot "
            f"reach --global-batch-size {batch} in steps of {increment}."
        )
    steps = (batch - start) // increment
    iterations = consumed = 0
    while consumed <= min(growing, samples):
        grown = consumed * steps // growing if growing else steps
        consumed += start + increment * grown
        iterations += 1
    return iterations + max(0, samples - consumed) // batch


def of_steps(samples: int, schedule: str, sequence: int) -> int:
    """Iterations of batches whose sizes a schedule names.

    Args:
        samples: `--train-samples`.
        schedule: `--step-batch-size-schedule`, as in `0:768 250B:1536`: from how many tokens on
            which batch.
        sequence: tokens in a sample, `--seq-length`.

    Raises:
        UsageError: it is no schedule, or does not begin at 0.
    """
    try:
        pairs = [entry.split(":") for entry in schedule.replace(",", " ").split()]
        stages = sorted((_number(tokens) // sequence, _number(size)) for tokens, size in pairs)
    except ValueError:
        stages = []
    if not stages or stages[0][0] or min(size for _, size in stages) < 1:
        raise UsageError(
            f"--step-batch-size-schedule {schedule!r}: expected tokens and sizes of batches from "
            'token 0 on, such as "0:768 250B:1536".'
        )
    iterations = consumed = 0
    ends = [first for first, _ in stages[1:]] + [samples]
    for (_, size), end in zip(stages, ends, strict=True):
        needed = max(0, -(-(min(end, samples) - consumed) // size))
        iterations += needed
        consumed += needed * size
    return iterations


def _number(text: str) -> int:
    factor = _SUFFIXES.get(text[-1:].upper(), 1)
    return int(float(text[:-1] if factor > 1 else text) * factor)
