# SPDX-License-Identifier: Apache-2.0
"""Bytes in: every compression as real files have it, and every cut and hit that they survive."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from trace_builder import (
    HEADER,
    TAIL,
    arrow_end,
    event,
    kernel,
    launch,
    metadata,
    step,
    text,
    write,
)

from megatron.torch_trace.reader import ByteStream, SlimEvent, Trace
from megatron.torch_trace.reader.cutter import BLOCK_BYTES

pytestmark = pytest.mark.slow

EVENTS = [
    step(1, 1_000, 91_000),
    event("aten::mm", 10_000, 5_000, args='"Input Dims": [[2, 3], []], "Ev Idx": 3'),
    launch(12_000, 13_000, 7),
    arrow_end("s", 7, 12_000),
    kernel("gemm<float, 2>", 20_000, 50_125, 7),
    arrow_end("f", 7, 20_000, pid=0, tid=7),
    event('name, {with} [every] "kind": of }, {', 30_000).replace('"kind"', "'kind'"),
    metadata("thread_name", 0, 7, name="stream 7"),
]
WHOLE = text(*EVENTS)
NAMES = [json.loads(e)["name"] for e in EVENTS]
IN_MEMORY = settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def read(path: Path) -> tuple[list[str], Trace]:
    trace = Trace(path)
    found = [json.loads(t) for block in trace.blocks(SlimEvent) for t in block.texts]
    return [str(e.get("name")) for e in found], trace


def bytes_of(path: Path) -> tuple[bytes, ByteStream]:
    stream = ByteStream(path)
    return b"".join(stream), stream


@pytest.mark.parametrize(
    "pack",
    [
        pytest.param(lambda d: d, id="plain"),
        pytest.param(gzip.compress, id="gzip"),
        pytest.param(lambda d: gzip.compress(d[:99]) + gzip.compress(d[99:]), id="two members"),
        pytest.param(lambda d: gzip.compress(d) + b"\0" * 65536, id="zero padding"),
        pytest.param(
            lambda d: gzip.compress(d[:99]) + b"\0" * 512 + gzip.compress(d[99:]),
            id="padded members",
        ),
        pytest.param(
            lambda d: gzip.compress(d[:99]) + gzip.compress(b"") + gzip.compress(d[99:]),
            id="empty member",
        ),
        pytest.param(lambda d: zstandard.ZstdCompressor().compress(d), id="zstd"),
        pytest.param(
            lambda d: (
                zstandard.ZstdCompressor().compress(d[:99])
                + zstandard.ZstdCompressor().compress(d[99:])
            ),
            id="two frames",
        ),
    ],
)
def test_compression_is_told_by_content_not_by_name(tmp_path: Path, pack: object) -> None:
    assert callable(pack)
    (tmp_path / "t.json").write_bytes(pack(WHOLE))
    data, stream = bytes_of(tmp_path / "t.json")
    assert data == WHOLE
    assert not stream.damage


@pytest.mark.parametrize("kept", [0.5, 0.9])
@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_a_cut_compressed_file_gives_what_it_holds(tmp_path: Path, kind: str, kept: float) -> None:
    many = text(*[event(f"op{i}", i * 1000, args=f'"x": {i * 7919}') for i in range(20_000)])
    whole = gzip.compress(many) if kind == "gzip" else zstandard.ZstdCompressor().compress(many)
    (tmp_path / "t.gz").write_bytes(whole[: int(len(whole) * kept)])
    data, stream = bytes_of(tmp_path / "t.gz")
    assert many.startswith(data)
    assert len(data) > len(many) * kept * 0.5
    assert stream.damage.counts == {"truncated_stream": 1}
    found, trace = read(tmp_path / "t.gz")
    assert found == [f"op{i}" for i in range(len(found))]
    assert set(trace.damage.counts) == {"truncated_stream", "truncated"}


def test_a_corrupt_gzip_gives_all_that_lies_before_the_fault(tmp_path: Path) -> None:
    many = text(*[event(f"op{i}", i * 1000, args=f'"x": {i * 7919}') for i in range(20_000)])
    whole = bytearray(gzip.compress(many))
    middle = len(whole) // 2
    whole[middle : middle + 64] = b"\xff" * 64
    (tmp_path / "t.gz").write_bytes(whole)
    data, stream = bytes_of(tmp_path / "t.gz")
    reference = zlib.decompressobj(wbits=31).decompress(bytes(whole[:middle]))
    assert data.startswith(reference)
    assert stream.damage.counts == {"corrupt_stream": 1}


def test_a_wrong_checksum_loses_nothing_and_is_told(tmp_path: Path) -> None:
    whole = bytearray(gzip.compress(WHOLE))
    whole[-6] ^= 1
    (tmp_path / "t.gz").write_bytes(whole)
    data, stream = bytes_of(tmp_path / "t.gz")
    assert (data, stream.damage.counts) == (WHOLE, {"corrupt_stream": 1})


def test_the_last_8_bytes_of_a_gzip_may_be_missing(tmp_path: Path) -> None:
    (tmp_path / "t.gz").write_bytes(gzip.compress(WHOLE)[:-8])
    found, trace = read(tmp_path / "t.gz")
    assert found == NAMES
    assert trace.damage.counts == {"truncated_stream": 1}


def test_blocks_never_part_an_arrow_from_its_slice(tmp_path: Path) -> None:
    pairs = []
    for i in range(9000):
        pairs += [launch(i * 1000, i * 1000 + 500, i + 1), arrow_end("s", i + 1, i * 1000)]
    path = write(tmp_path / "t.json", text(*pairs))
    blocks = list(Trace(path).blocks(SlimEvent))
    assert len(blocks) > 2
    assert [block.events[0].ph for block in blocks] == ["X"] * len(blocks)
    assert all(block.size <= BLOCK_BYTES for block in blocks)
    assert sum(len(block.events) for block in blocks) == 18000


def test_event_offsets_point_at_the_events(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", WHOLE)
    block = next(iter(Trace(path).blocks(SlimEvent)))
    for index, one in enumerate(EVENTS):
        assert block.event_offset(index) == WHOLE.index(one.encode())


def test_several_processes_read_what_one_reads(tmp_path: Path) -> None:
    many = [event(f"op{i} <{'x' * (i % 90)}>", i * 1000, args='"a": [1, 2]') for i in range(30_000)]
    many[11_111] = event("C:\\Users", 11_111_000)
    many[22_222] = many[22_222].replace('"ph"', '"ph')
    path = write(tmp_path / "t.json", text(*many))
    path.write_bytes(path.read_bytes())
    alone, together = Trace(path), Trace(path)
    one = [t for texts in alone.map(texts_of, SlimEvent) for t in texts]
    two = [t for texts in together.map(texts_of, SlimEvent, workers=2) for t in texts]
    assert one == two
    assert len(one) == 29_999
    assert alone.damage == together.damage
    assert alone.metadata == together.metadata


def test_events_may_be_laid_out_in_several_ways(tmp_path: Path) -> None:
    as_kineto = [event(f"op{i}", i * 1000) for i in range(3)]
    on_one_line = [
        f'{{"name": "moved{i} <{"x" * 400}>", "ph": "X", "ts": {i}.000, "dur": 1.000}}'
        for i in range(15_000)
    ]
    path = write(tmp_path / "t.json", text(*as_kineto, *on_one_line, *as_kineto))
    found, trace = read(path)
    assert len(found) == 15_006
    assert not trace.damage


def texts_of(block: object) -> list[bytes]:
    texts = getattr(block, "texts")  # noqa: B009
    assert isinstance(texts, list)
    return texts


@IN_MEMORY
@given(cut=st.integers(0, len(WHOLE)))
@example(cut=len(WHOLE) - 1)
@example(cut=len(HEADER) + 1)
def test_a_cut_at_any_byte_loses_only_what_lies_behind_it(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(WHOLE[:cut])
    if b'"schemaVersion":' not in WHOLE[:cut]:
        return
    found, trace = read(path)
    whole = [e for e in EVENTS if WHOLE.index(e.encode()) + len(e) <= cut]
    assert found == [json.loads(e)["name"] for e in whole]
    if cut < len(WHOLE.rstrip()):
        assert trace.damage.counts["truncated"] == 1


@IN_MEMORY
@given(cut=st.integers(18, len(gzip.compress(WHOLE, mtime=0)) - 1))
def test_a_gzip_cut_at_any_byte_gives_a_prefix(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "t.gz"
    path.write_bytes(gzip.compress(WHOLE, mtime=0)[:cut])
    data, stream = bytes_of(path)
    assert WHOLE.startswith(data)
    assert stream.damage.counts == {"truncated_stream": 1}


def hits() -> st.SearchStrategy[tuple[int, int, bytes]]:
    """(position, bytes removed there, bytes put there)."""
    return st.tuples(
        st.integers(0, len(WHOLE) - 1),
        st.integers(0, 1),
        st.one_of(
            st.just(b""),
            st.binary(min_size=1, max_size=1),
            st.sampled_from(list(b'{}[],:"\\ \n')).map(lambda b: bytes([b])),
        ),
    )


@settings(IN_MEMORY, max_examples=1500)
@given(hit=hits())
def test_any_hit_of_one_byte_costs_at_most_the_event_it_hits(
    tmp_path: Path, hit: tuple[int, int, bytes]
) -> None:
    position, removed, put = hit
    path = tmp_path / "t.json"
    path.write_bytes(WHOLE[:position] + put + WHOLE[position + removed :])
    found, trace = read(path)
    offsets = [(WHOLE.index(e.encode()), e) for e in EVENTS]
    # Events that the hit did not touch, and that do not stand right beside it.
    untouched = [json.loads(e)["name"] for at, e in offsets if not at <= position < at + len(e)]
    kept = list(found)
    for name in untouched:
        assert name in kept, (name, found, dict(trace.damage.counts))
        kept.remove(name)
    assert len(kept) <= 1


@settings(IN_MEMORY, max_examples=200)
@given(
    data=st.lists(
        st.one_of(
            st.sampled_from([e.encode() for e in EVENTS]),
            st.sampled_from([b",\n  ", b"]", b"}", b"{", b'"', b"\\", b"\0", TAIL.encode()]),
            st.binary(max_size=20),
        ),
        max_size=20,
    )
)
def test_no_text_whatsoever_makes_the_reader_fail(tmp_path: Path, data: list[bytes]) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(HEADER.encode() + b"".join(data))
    found, _ = read(path)
    assert len(found) <= len(data) + 1


def test_zstd_of_zeros_is_handed_out_in_bounded_pieces(tmp_path: Path) -> None:
    """Four bytes stand for 128 KiB: a bomb of 120 kB would fill 4 GB."""
    path = tmp_path / "zeros.zst"
    path.write_bytes(zstandard.ZstdCompressor().compress(bytes(1 << 27)))
    sizes = [len(piece) for piece in ByteStream(path)]
    assert (sum(sizes), max(sizes) <= 1 << 23) == (1 << 27, True)
    assert len(path.read_bytes()) < 1 << 14


def test_rubbish_of_more_than_a_block_costs_no_event_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megatron.torch_trace.reader.cutter._LARGEST", 1 << 21)
    events = [event("a"), event("x" * 5_000_000), *[event(f"b{i}") for i in range(100)]]
    trace = Trace(write(tmp_path / "t.json", text(*events)))
    found = [e.name for block in trace.blocks(SlimEvent) for e in block.events]
    assert found == ["a", *[f"b{i}" for i in range(100)]]
    assert set(trace.damage.counts) == {"lost_event", "stray_text"}
    assert trace.metadata.get("traceName") == "trace.json"
