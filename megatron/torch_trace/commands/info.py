# SPDX-License-Identifier: Apache-2.0
"""`torch-trace info`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from megatron.torch_trace.commands import options, terminal
from megatron.torch_trace.errors import DamagedTraceError
from megatron.torch_trace.reader import available_cores
from megatron.torch_trace.sources import find_traces, rank_in_name
from megatron.torch_trace.survey import Survey, survey

_EASY_BYTES = 500_000_000
_LARGEST_BYTES = 2_000_000_000

if TYPE_CHECKING:
    from rich.console import Console


@click.command("info")
@options.paths
@options.as_json
@options.strict
@options.jobs
def command(paths: tuple[str, ...], as_json: bool, strict: bool, jobs: int | None) -> None:
    """Tell what traces hold, what is wrong with them, and which command makes them open.

    Rank, coordinates, host, device, versions, steps, span, events and bytes by category, process
    groups, the profiler's flags.
    """
    sources = find_traces(paths)
    surveys = []
    for path in sources.traces:
        with terminal.progress(path.name, path) as on_read:
            surveys.append(
                survey(path, strict=strict, workers=jobs or available_cores(), on_read=on_read)
            )
    if as_json:
        skipped = [{"file": str(p), "reason": reason} for p, reason in sources.skipped]
        click.echo(json.dumps({"traces": [facts(s) for s in surveys], "skipped_files": skipped}))
    else:
        console = terminal.console()
        if len(surveys) > 1:
            _print_list(console, surveys)
        else:
            for one in surveys:
                _print_one(console, one)
        for path, reason in sources.skipped:
            console.print(f"Skipped {path}: {reason}.")
    damaged = [str(one.path) for one in surveys if one.damage]
    if damaged:
        raise DamagedTraceError(
            f"damaged: {', '.join(damaged)}; `torch-trace check` says what and where."
        )


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
            for number, (start, length) in sorted(one.steps.items())
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
    if one.metadata.merged is not None:
        return None
    own = one.metadata.rank
    return rank_in_name(one.path.name) if own is None else own


def device(one: Survey) -> str | None:
    """Name of the GPU that did work, or of the first one visible."""
    names = {d.get("id"): str(d.get("name")) for d in one.metadata.devices}
    used = [names[number] for number in sorted(one.devices) if number in names]
    return next(iter(used or names.values()), None)


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
    if one.gpu_is_missing:
        found.append(
            f"0 of {one.launches:,} launches have a kernel: GPU activity was not recorded "
            "(another profiler attached, or no permission for CUPTI)."
        )
    elif one.gpu_is_incomplete:
        found.append(
            f"{one.launches_without_work:,} of {one.launches:,} launches have no kernel: "
            "activity was dropped, utilisation is unknown."
        )
    elif not one.gpu_events and one.account:
        found.append("No GPU work at all.")
    for kind, odd in sorted(one.odd.items()):
        found.append(f"{odd.count:,} slices {kind} (first at byte {odd.offset:,}).")
    if not one.steps and one.account:
        found.append("No ProfilerStep marks: the whole span counts as one step.")
    if rank(one) is None and one.metadata.merged is None:
        found.append("No rank: neither the trace nor its name tells it.")
    return found


def advice(one: Survey) -> list[str]:
    """Which command makes the trace small enough for which viewer."""
    name = one.path.name
    sizes = {key: size for key, (_, size) in one.account.items()}
    out = name.split(".")[0] + ".slim.json.gz"
    whole = f"torch-trace slim {name} -o {out} --preset perfetto"
    if one.metadata.merged is not None:
        if one.raw_bytes <= _LARGEST_BYTES:
            return ["Open it in Perfetto as it is."]
        return [f"One rank of it: torch-trace slim {name} -o {out} --rank 0"]
    if one.raw_bytes <= _EASY_BYTES:
        return [f"Perfetto, nothing lost: {whole}"]
    found = []
    python = sizes.get("python_function", 0)
    left = one.raw_bytes - python
    if python > one.raw_bytes / 5:
        found.append(f"Without Python frames, about {terminal.size(left)}: {whole} --drop python")
    if len(one.steps) > 1:
        first = min(one.steps)
        each = one.raw_bytes / len(one.steps)
        found.append(f"One step, about {terminal.size(each)}: {whole} --step {first}")
    kept = sum(
        sizes.get(key, 0)
        for key in ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "user_annotation", "ac2g")
    )
    found.append(
        f"GPU work and its launches, about {terminal.size(kept)}: "
        f"torch-trace slim {name} -o {out} --preset overlap"
    )
    if one.raw_bytes > _LARGEST_BYTES:
        found.insert(0, "More JSON than a browser can hold (2 GB); TensorBoard gives up at 500 MB.")
    else:
        found.insert(0, f"Perfetto opens it, slowly; nothing lost: {whole}")
    return found


def _print_list(console: Console, surveys: list[Survey]) -> None:
    table = terminal.table(
        "rank", "at", "device", "steps", "span", "events", "JSON", "file", "", right=(0, 4, 5, 6)
    )
    for one in surveys:
        wrong = "damaged" if one.damage else "faults" if one.has_faults else ""
        where = " ".join(f"{k}{v}" for k, v in one.metadata.coordinates.items())
        number = rank(one)
        table.add_row(
            "merged" if one.metadata.merged else "?" if number is None else str(number),
            where,
            device(one) or "-",
            _steps(one),
            _span(one),
            f"{one.events:,}",
            terminal.size(one.raw_bytes),
            str(one.path),
            f"[bold red]{wrong}[/]" if wrong else "",
        )
    console.print(table)


def _steps(one: Survey) -> str:
    numbers = sorted(one.steps)
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]}-{numbers[-1]}"
    return ", ".join(map(str, numbers)) or "none"


def _span(one: Survey) -> str:
    return terminal.duration(one.span_ns[1] - one.span_ns[0]) if one.span_ns else "none"


def _print_one(console: Console, one: Survey) -> None:
    metadata = one.metadata
    console.print(f"[bold]{Path(one.path)}[/]")
    table = terminal.table("", "")
    table.show_header = False
    number = rank(one)
    where = " ".join(f"{k}{v}" for k, v in metadata.coordinates.items())
    if metadata.merged is not None:
        names = ", ".join(str(entry.get("rank")) for entry in metadata.merged.get("ranks", []))
        table.add_row("merged of ranks", names)
    else:
        of = f" of {metadata.world_size}" if metadata.world_size else ""
        shown = "unknown" if number is None else f"{number}{of}"
        table.add_row("rank", f"{shown}{f'  ({where})' if where else ''}")
    table.add_row("host", str(metadata.own.get("host") or "not recorded"))
    table.add_row("device", device(one) or "not recorded")
    table.add_row("versions", ", ".join(f"{k[:-8]} {v}" for k, v in versions(one).items()) or "-")
    table.add_row("flags on", ", ".join(metadata.flags) or "none")
    table.add_row("steps", _steps(one))
    table.add_row("span", _span(one))
    packed = f", {terminal.size(one.file_bytes)} as {one.compression}" if one.file_bytes else ""
    table.add_row("size", f"{terminal.size(one.raw_bytes)} of JSON{packed}")
    table.add_row(
        "launches", f"{one.launches:,}, of which {one.launches_without_work:,} ran nothing"
    )
    if metadata.own.get("slim"):
        table.add_row("slimmed", json.dumps(metadata.own["slim"]))
    console.print(table)
    _print_categories(console, one)
    _print_groups(console, one)
    console.print()
    for sentence in problems(one):
        console.print(f"[bold red]![/] {sentence}")
    for sentence in advice(one):
        console.print(f"[green]>[/] {sentence}", soft_wrap=True)


def _print_categories(console: Console, one: Survey) -> None:
    table = terminal.table("category", "events", "bytes", "share", right=(1, 2, 3))
    total = sum(size for _, size in one.account.values()) or 1
    for name, (events, size) in sorted(one.account.items(), key=lambda item: -item[1][1]):
        table.add_row(
            name or "(none)", f"{events:,}", terminal.size(size), f"{100 * size / total:.1f} %"
        )
    console.print()
    console.print(table)


def _print_groups(console: Console, one: Survey) -> None:
    groups = [g for g in one.metadata.process_groups if len(g["ranks"]) > 1]
    if not groups:
        return
    table = terminal.table("process group", "name", "size", "ranks", right=(2,))
    seen: dict[str, list[Any]] = {}
    for group in groups:
        ranks = ", ".join(map(str, group["ranks"][:8])) + (
            ", ..." if len(group["ranks"]) > 8 else ""
        )
        seen.setdefault(ranks, []).append(group)
    for ranks, members in seen.items():
        first, *others = members
        more = f" and {len(others)} more" if others else ""
        table.add_row(
            f"{first.get('pg_desc')}{more}",
            str(first.get("pg_name")),
            str(len(first["ranks"])),
            ranks,
        )
    console.print()
    console.print(table)
