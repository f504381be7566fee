# SPDX-License-Identifier: Apache-2.0
"""Packets stand in such an order that Perfetto may let go of them while it reads."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard
from timeline_reader import fields, message, read_timeline, unpacked
from trace_builder import op, write_rank

from megatron.torch_trace.perfetto import convert
from megatron.torch_trace.perfetto.time_order import BlockWriter, RankFile, Wrapper, in_order

FLUSHED, READ = 3, 4


def packets(data: bytes) -> Iterator[dict[int, list[bytes | int]]]:
    """Packets one after the other, those inside of compressed ones too."""
    for _, content in fields(data):
        assert isinstance(content, bytes)
        packet = message(content)
        for packed in packet[50]:
            yield from packets(zlib.decompress(packed))
        yield packet


def texts(files: list[RankFile]) -> list[str]:
    """What the blocks of files hold, without the words to Perfetto at their ends."""
    inner = [zlib.decompress(message(part)[50][0]) for _, part in fields(b"".join(in_order(files)))]
    return [text.split(b"\n")[0].decode() for text in inner]


def test_heads_stand_first_and_blocks_of_all_ranks_in_order_of_the_timeline(tmp_path: Path) -> None:
    files = []
    for rank, (zero, starts) in enumerate([(1_000, (0, 50, 300)), (1_020, (0, 10, 400))]):
        with (tmp_path / str(rank)).open("wb") as file:
            writer = BlockWriter(file.write)
            writer.head(b"head %d\n" % rank)
            writer.head(b"words %d\n" % rank)
            for start in starts:
                writer.block(start, b"rank %d at %d\n" % (rank, start + zero))
        files.append(RankFile(tmp_path / str(rank), writer.layout, zero))
    assert texts(files[:1]) == [
        "head 0", "words 0", "rank 0 at 1000", "rank 0 at 1050", "rank 0 at 1300",
    ]  # fmt: skip
    assert texts(files) == [
        "head 0", "words 0", "head 1", "words 1",
        "rank 0 at 1000", "rank 1 at 1020", "rank 1 at 1030", "rank 0 at 1050",
        "rank 0 at 1300", "rank 1 at 1420",
    ]  # fmt: skip


def test_what_perfetto_has_sorted_for_good_is_followed_by_nothing_earlier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megatron.torch_trace.perfetto.part.BLOCK_PACKETS", 8)
    traces = []
    for rank, (shift, length) in enumerate([(0, 700), (5_000, 90), (2_000, 3_000)]):
        events = [op(f"a{n}", shift + n * 1_000, shift + n * 1_000 + length) for n in range(60)]
        events += [op(f"b{n}", shift + n * 999, shift + n * 999 + 5, tid=2) for n in range(60)]
        traces.append(write_rank(tmp_path / f"rank-{rank}.json", *events, rank=rank))
    output = tmp_path / "all.pftrace"
    convert(traces, output, jobs=1)
    timeline = read_timeline(output)
    zero = {
        sequence: timeline.clocks[6] - timeline.clocks[128 + sequence] for sequence in (1, 2, 3)
    }
    held: list[tuple[int, int]] = []
    seen = flushes = limit = most = 0
    sorted_until = -1
    for packet in packets(output.read_bytes()):
        for event in packet[69]:
            assert isinstance(event, bytes)
            kind = message(event)
            flushes += len(kind[FLUSHED])
            if kind[READ] and flushes >= 2:
                held.sort()
                while held and held[0][1] < limit:
                    sorted_until = held.pop(0)[0]
                flushes, limit = 0, seen
        if packet[11]:
            time, sequence = packet[8][0], packet[10][0]
            assert isinstance(time, int)
            assert isinstance(sequence, int)
            assert time + zero[sequence] >= sorted_until
            held.append((time + zero[sequence], seen))
            seen += 1
            most = max(most, len(held))
    assert seen == 2 * 3 * 120
    # Of 720: three blocks of each of three ranks.
    assert most <= 3 * 3 * 8


def test_what_is_compressed_already_is_only_wrapped(tmp_path: Path) -> None:
    once = zlib.compress(bytes(range(256)) * 40)
    written = {}
    for suffix in (".pftrace", ".gz", ".zst"):
        wrapper = Wrapper(tmp_path / f"a{suffix}")
        written[suffix] = wrapper.add(once) + wrapper.add(once) + wrapper.end()
    assert written[".pftrace"] == once * 2
    assert gzip.decompress(written[".gz"]) == once * 2
    assert zstandard.ZstdDecompressor().decompressobj().decompress(written[".zst"]) == once * 2
    (tmp_path / "a.gz").write_bytes(written[".gz"])
    assert unpacked(tmp_path / "a.gz") == once * 2
