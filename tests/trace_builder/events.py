# SPDX-License-Identifier: Apache-2.0
"""One event as Kineto writes it. Slices have a start and an end; only `event` has a duration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Time = int | str
"""ns from the start of the trace, or text that stands in the file as it is, right or wrong."""
Args = Mapping[str, Any] | str

CPU, GPU = 42, 0
"""Processes."""
LOOP, BACKWARD = 42, 200
"""Threads: of the training loop, which is the main thread, and of autograd."""

DESCRIPTIONS = {
    "tp": "TENSOR_MODEL_PARALLEL_GROUP",
    "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
    "dp": "DATA_PARALLEL_GROUP_WITH_CP",
    "ep": "EXPERT_MODEL_PARALLEL_GROUP",
    "default": "default_pg",
}


def event(
    name: str = "aten::mm",
    ts: Time = 100_000,
    dur: Time | None = 10_000,
    *,
    ph: str = "X",
    cat: str | None = "cpu_op",
    pid: int | str = CPU,
    tid: int | str = LOOP,
    args: Args | None = None,
    more: str = "",
) -> str:
    """Any event: its name, and arguments that are text, go in raw, broken or not."""
    category = f'"cat": "{cat}", ' if cat is not None else ""
    lines = f'{{\n    "ph": "{ph}", {category}"name": "{name}", "pid": {_quoted(pid)}, '
    lines += f'"tid": {_quoted(tid)},\n    "ts": {_us(ts)}'
    lines += f', "dur": {_us(dur)}' if dur is not None else ""
    lines += more
    if args is not None:
        lines += f',\n    "args": {{\n      {_arguments(args)}\n    }}'
    return lines + "\n  }"


def op(name: str, start: int, end: int, **more: Any) -> str:
    """An operator on the thread of the training loop; `cat`, `pid`, `tid` and `args` by name."""
    return event(_escaped(name), start, end - start, **more)


def annotation(name: str, start: int, end: int, **more: Any) -> str:
    return op(name, start, end, cat="user_annotation", **more)


def step(number: int, start: int, end: int, **more: Any) -> str:
    return annotation(f"ProfilerStep#{number}", start, end, **more)


def mark(name: str, start: int, end: int, *, stream: int = 7) -> str:
    """An annotation on the GPU."""
    return op(name, start, end, cat="gpu_user_annotation", pid=GPU, tid=stream)


def call(name: str, start: int, end: int, **more: Any) -> str:
    """A runtime call that launches nothing."""
    return op(name, start, end, cat="cuda_runtime", **more)


def launch(
    start: int, end: int, correlation: int, *, name: str = "cudaLaunchKernel", **more: Any
) -> str:
    """The runtime call that puts a kernel on its stream."""
    return call(name, start, end, args={"cbid": 211, "correlation": correlation}, **more)


def kernel(
    name: str,
    start: int,
    end: int,
    correlation: int,
    *,
    stream: int = 7,
    device: int = GPU,
    cat: str = "kernel",
    external: int | None = None,
    **args: Any,
) -> str:
    """Work on a stream of a GPU; all other arguments are those of the event."""
    own = {"External id": external} if external is not None else {}
    own |= {"device": device, "stream": stream, "correlation": correlation, **args}
    return op(name, start, end, cat=cat, pid=device, tid=stream, args=own)


def instant(name: str, ts: Time, *, cat: str | None = None, scope: str = "t", **more: Any) -> str:
    """A moment of a thread; of the whole trace where `scope` is `g`."""
    scoped = f', "s": "{scope}"'
    return event(_escaped(name), ts, None, ph="i", cat=cat, more=scoped, **more)


def counter(name: str, ts: Time, **values: float) -> str:
    return event(_escaped(name), ts, None, ph="C", cat=None, args=values)


def arrow(number: int | str, start: str, end: str, cat: str = "ac2g") -> list[str]:
    """Both ends, each where a slice begins."""
    ends = []
    for phase, one in (("s", start), ("f", end)):
        there = json.loads(one, parse_float=str)
        track = {"pid": there["pid"], "tid": there["tid"], "cat": cat}
        ends.append(arrow_end(phase, number, str(there["ts"]), **track))
    return ends


def arrow_end(
    phase: str,
    number: int | str,
    ts: Time,
    *,
    pid: int | str = CPU,
    tid: int | str = LOOP,
    cat: str = "ac2g",
) -> str:
    """One end of an arrow: `s` where it starts, `f` where it ends."""
    finish = ', "bp": "e"' if phase == "f" else ""
    return (
        f'{{\n    "ph": "{phase}", "id": {_quoted(number)}, "pid": {_quoted(pid)}, '
        f'"tid": {_quoted(tid)}, "ts": {_us(ts)},\n'
        f'    "cat": "{cat}", "name": "{cat}"{finish}\n  }}'
    )


def metadata(kind: str, pid: int | str, tid: int | str, **args: Any) -> str:
    """What a process or a thread is called, and where it is in the order."""
    return (
        f'{{\n    "name": "{kind}", "ph": "M", "ts": 0.000, "pid": {_quoted(pid)}, '
        f'"tid": {_quoted(tid)},\n    "args": {{\n      {_arguments(args)}\n    }}\n  }}'
    )


def collective_args(
    name: str, dimension: str, *, nelems: int = 1000, size: int = 2, dtype: str = "BFloat16"
) -> dict[str, Any]:
    """The arguments that torch writes for a collective."""
    return {
        "Collective name": name,
        "In msg nelems": nelems,
        "Out msg nelems": nelems,
        "Group size": size,
        "dtype": dtype,
        "Process Group Name": dimension,
        "Process Group Description": DESCRIPTIONS[dimension],
        "Process Group Ranks": str(list(range(size))),
    }


def _quoted(identity: int | str) -> str:
    return str(identity) if isinstance(identity, int) else f'"{identity}"'


def _us(time: Time) -> str:
    """Microseconds with three decimals."""
    if isinstance(time, str):
        return time
    sign = "-" if time < 0 else ""
    return f"{sign}{abs(time) // 1000}.{abs(time) % 1000:03d}"


def _escaped(name: str) -> str:
    return json.dumps(name)[1:-1]


def _arguments(args: Args) -> str:
    return args if isinstance(args, str) else json.dumps(args)[1:-1]
