# SPDX-License-Identifier: Apache-2.0
"""`torch-trace decompress`."""

from __future__ import annotations

from pathlib import Path

import click

from megatron.torch_trace.commands import options, terminal
from megatron.torch_trace.errors import DamagedTraceError, UsageError
from megatron.torch_trace.reader import available_cores
from megatron.torch_trace.repair import decompress


@click.command("decompress")
@options.paths
@options.output(
    required=False, help="File to write; - for stdout [default: PATH without .gz or .zst]."
)
@options.force
@options.strict
@click.option(
    "--repair",
    is_flag=True,
    help="Look at every event and mend what strict parsers refuse (slower).",
)
@options.jobs
def command(
    paths: tuple[str, ...],
    output: str | None,
    force: bool,
    strict: bool,
    repair: bool,
    jobs: int | None,
) -> None:
    """Write traces as plain JSON, beside where they are.

    A file that is cut, corrupt or not UTF-8 is read event by event: every whole event is saved, and
    the result is valid JSON. Exit status 3 then says that something was lost or mended. Other
    damage, such as quotes in names or inf, stays as it is without --repair.
    """
    traces = [path for path in map(Path, paths) if path.is_file() or str(path) == "-"]
    folders = [path for path in paths if Path(path) not in traces]
    if folders:
        from megatron.torch_trace.sources import find_traces

        traces += find_traces(folders).traces
    if output and len(traces) > 1:
        raise UsageError(f"--output {output}: is one file, but there are {len(traces)} traces.")
    damaged = []
    for path in traces:
        target = Path(output) if output else _plain_name(path)
        with terminal.progress(path.name, path) as on_read:
            result = decompress(
                path,
                target,
                force=force,
                strict=strict,
                repair=repair,
                workers=jobs or available_cores(),
                on_read=on_read,
            )
        if str(target) != "-":
            how = "" if result.repaired else ", byte for byte (--repair mends what parsers refuse)"
            terminal.say(f"Wrote {target}: {terminal.size(result.written_bytes)} of JSON{how}.")
        if result.damage:
            terminal.say(f"{path}: {result.damage.sentence()}.")
            damaged.append(path)
    if damaged:
        names = ", ".join(map(str, damaged))
        raise DamagedTraceError(f"damaged input, see above: {names}.")


def _plain_name(path: Path) -> Path:
    if str(path) == "-":
        return path
    if path.suffix in (".gz", ".zst"):
        return path.with_suffix("")
    return path.with_name(f"{path.name.removesuffix('.json')}.plain.json")
