# SPDX-License-Identifier: Apache-2.0
"""What a survey tells about a trace: facts for machines, problems and advice as sentences."""

from __future__ import annotations

import shlex
from bisect import bisect_right
from math import inf
from typing import TYPE_CHECKING, Any

from megatron.torch_trace import wording
from megatron.torch_trace.files.sources import rank_of
from megatron.torch_trace.format.categories import LAUNCHES
from megatron.torch_trace.gpu_record.captured_launches import captured_sentence
from megatron.torch_trace.gpu_record.restarts import again_sentence

if TYPE_CHECKING:
    from megatron.torch_trace.inspect.survey import Survey

_EASY_BYTES = 500_000_000
_LARGEST_BYTES = 2_000_000_000


def facts(one: Survey) -> dict[str, Any]:
    """Everything `info` knows about a trace, for `--json`. Times are ns, sizes bytes."""
    metadata = one.metadata
    return {
        "file": str(one.path),
        "rank": rank(one),
        "world_size": metadata.world_size,
        "coordinates": metadata.coordinates,
        "merged": metadata.merged is not None,
        "host": metadata.own.get("host"),
        "device": device(one),
        "versions": versions(one),
        "flags": metadata.flags,
        "compression": one.compression,
        "file_bytes": one.file_bytes,
        "raw_bytes": one.raw_bytes,
        "events": one.events,
        "base_time_ns": metadata.base_time_ns,
        "span_ns": list(one.span_ns) if one.span_ns else None,
        "steps": [
            {"step": number, "start_ns": start, "duration_ns": length}
            for number, start, length in one.steps
        ],
        "categories": {
            name: {"events": events, "bytes": size} for name, (events, size) in one.account.items()
        },
        "launches": {"launches": one.launches, "without_kernel": one.launches_without_work},
        "process_groups": [
            {
                "name": group.get("pg_name"),
                "description": group.get("pg_desc"),
                "size": group.get("pg_size", len(group["ranks"])),
                "ranks": group["ranks"],
            }
            for group in metadata.process_groups
        ],
        "slimmed": metadata.own.get("slim"),
        "damage": one.damage.as_json(),
        "problems": problems(one),
        "advice": advice(one),
    }


def rank(one: Survey) -> int | None:
    """Rank by the trace's own word, else by its name."""
    return rank_of(one.metadata, one.path)


def device(one: Survey) -> str | None:
    """Name of the GPU that did work, or of the first one visible."""
    visible = one.metadata.devices
    names = {d["id"]: str(d.get("name")) for d in visible if isinstance(d.get("id"), int)}
    used = [names[number] for number in sorted(one.devices) if number in names]
    return next(iter(used or (str(d.get("name")) for d in visible)), None)


def versions(one: Survey) -> dict[str, str]:
    """Versions of libraries, as far as the trace tells them."""
    found = {
        key: str(one.metadata.get(key))
        for key in sorted(one.metadata.entries)
        if key.endswith("_version")
    }
    nccl = one.metadata.distributed_info.get("nccl_version")
    if nccl:
        found["nccl_version"] = str(nccl)
    own = one.metadata.own.get("versions")
    if isinstance(own, dict):
        found.update({str(key): str(value) for key, value in own.items()})
    return found


def problems(one: Survey) -> list[str]:
    """What is wrong with a trace, a sentence each."""
    found = []
    if one.damage:
        found.append(f"Damaged: {one.damage.sentence()}.")
    maker = one.metadata.maker
    unknown = maker.sentence if maker else one.gpu_record.why_unknown
    if unknown and one.account:
        found.append(unknown)
    if one.gpu_events and not any(name in LAUNCHES or name == "cpu_op" for name in one.account):
        found.append(
            "The trace holds no calls and no operators of the CPU: compute, communication and "
            "copies are known; what launched them and why the GPU was idle are unknown."
        )
    if one.duplicates:
        rows = wording.counted(one.duplicates, "GPU row is", "GPU rows are")
        found.append(f"{rows} written again; each is counted once.")
    if one.captured:
        found.append(captured_sentence(one.captured, _steps_at(one, one.captured_at)))
    for kind, odd in sorted(one.odd.items()):
        slices = wording.counted(odd.count, "slice")
        found.append(f"{slices} {kind} (first at byte {odd.offset:,}).")
    if one.metadata.merged is None:
        found += again_sentence([number for number, *_ in one.steps])
    if not one.steps and one.account and maker is None:
        found.append("No ProfilerStep in the trace: the whole trace counts as one step.")
    if rank(one) is None and one.metadata.merged is None:
        found.append("Rank unknown: neither the trace nor its file name has the rank.")
    return found


def _steps_at(one: Survey, times: list[int]) -> list[int]:
    """The steps in which these times are; a step lasts until the next one begins."""
    starts = [(start, number) for number, start, _ in one.steps]
    at = (bisect_right(starts, (time, inf)) for time in times)
    return sorted({starts[position - 1][1] for position in at if position})


def advice(one: Survey) -> list[str]:
    """Which command makes the trace small enough for which viewer."""
    name = shlex.quote(wording.path_text(one.path))
    sizes = {key: size for key, (_, size) in one.account.items()}
    out = shlex.quote(wording.path_text(one.path.name.split(".")[0]) + ".slim.json.gz")
    whole = f"torch-trace slim {name} -o {out} --preset perfetto"
    if one.metadata.merged is not None:
        if one.raw_bytes <= _LARGEST_BYTES:
            return ["Perfetto opens this trace as it is."]
        return [f"For one rank: torch-trace slim {name} -o {out} --rank 0"]
    if one.raw_bytes <= _EASY_BYTES:
        return [f"To open it in Perfetto without loss: {whole}"]
    found = []
    python = sizes.get("python_function", 0)
    left = one.raw_bytes - python
    if python > one.raw_bytes / 5:
        found.append(f"Without Python frames, about {wording.size(left)}: {whole} --drop python")
    if len(one.steps) > 1:
        first = one.steps[0][0]
        each = one.raw_bytes / len(one.steps)
        found.append(f"One step, about {wording.size(each)}: {whole} --step {first}")
    kept = sum(
        sizes.get(key, 0)
        for key in ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "user_annotation", "ac2g")
    )
    found.append(
        f"GPU work and its launches, about {wording.size(kept)}: "
        f"torch-trace slim {name} -o {out} --preset overlap"
    )
    if one.raw_bytes > _LARGEST_BYTES:
        found.insert(
            0, "The JSON is larger than a browser can hold (2 GB); TensorBoard gives up at 500 MB."
        )
    else:
        found.insert(0, f"Perfetto opens this trace slowly; without loss: {whole}")
    return found
