# SPDX-License-Identifier: Apache-2.0
"""`torch-trace decompress`."""

from __future__ import annotations

from pathlib import Path

import click

from megatron.torch_trace import wording
from megatron.torch_trace.commands import options, terminal
from megatron.torch_trace.commands.options import output_names
from megatron.torch_trace.errors import DamagedTraceError, UsageError
from megatron.torch_trace.files.path_kinds import is_file
from megatron.torch_trace.reader import ByteStream, available_cores
from megatron.torch_trace.rewrite.decompression import (
    BEGINS_BLANK,
    BLANKS,
    MOST_BLANKS,
    DecompressResult,
    decompress,
)


@click.command("decompress", epilog=options.exit_status(s3="something was lost or mended"))
@options.paths
@options.output(
    required=False,
    help="File to write; - for stdout [default: PATH without .gz or .zst].",
    refuse=output_names.TRACE,
)
@options.force
@options.strict
@click.option(
    "--repair",
    is_flag=True,
    help="Read every event and mend what strict parsers refuse (slower).",
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
    """Write traces as plain JSON, beside the compressed files.

    \b
    torch-trace decompress rank-0.pt.trace.json.gz
    torch-trace decompress cut.json.gz -o whole.json --repair

    From a file that is cut, corrupt or not UTF-8, every whole event is saved, and the result is
    valid JSON. Other damage, such as quotes in names or inf, is mended only with --repair.
    """
    traces = [path for path in map(Path, paths) if is_file(path) or str(path) == "-"]
    for path in traces:
        _refuse_a_stranger(path)
    folders = [path for path in paths if Path(path) not in traces]
    if folders:
        traces += _packed(folders, repair)
    if output and len(traces) > 1:
        raise UsageError(
            f"--output {output}: is one file, and there are {len(traces)} traces; name one trace."
        )
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
            terminal.say(f"Wrote {target}: {_what(result)}.")
        if result.damage:
            terminal.say(f"{path}: {result.damage.sentence()}.")
            damaged.append(path)
    if damaged:
        names = ", ".join(map(str, damaged))
        raise DamagedTraceError(f"damaged input, see above: {names}.")


def _what(result: DecompressResult) -> str:
    size = wording.size(result.written_bytes)
    if not result.is_trace:
        return f"{size}, byte for byte (there is no trace in it, and nothing to mend)"
    if result.repaired:
        return f"{size} of JSON"
    return f"{size} of JSON, byte for byte (--repair mends what parsers refuse)"


def _refuse_a_stranger(path: Path) -> None:
    """Whatever else is wrong with a file is its damage; one that begins otherwise is no JSON."""
    if str(path) == "-":
        return
    stream = ByteStream(path)
    for piece in stream:
        if piece.strip(BLANKS):
            if piece.lstrip(BLANKS)[:1] not in (b"{", b"["):
                from megatron.torch_trace.format.other_formats import not_a_trace

                raise UsageError(f"{path}: no trace: {not_a_trace(piece)}.")
            return
        if stream.produced > MOST_BLANKS:
            raise UsageError(f"{path}: no trace: {BEGINS_BLANK}.")
    raise UsageError(f"{path}: no trace: the file is empty.")


def _packed(folders: list[str], repair: bool) -> list[Path]:
    """Traces in folders, without those that are plain already, such as an earlier run left."""
    from megatron.torch_trace.files.sources import find_traces

    found = find_traces(folders).traces
    packed = [path for path in found if repair or path.suffix != ".json"]
    if not packed:
        raise UsageError(f"{', '.join(folders)}: every trace there is plain JSON already.")
    return packed


def _plain_name(path: Path) -> Path:
    if str(path) == "-":
        return path
    if path.suffix in (".gz", ".zst"):
        return path.with_suffix("")
    return path.with_name(f"{path.name.removesuffix('.json')}.plain.json")
