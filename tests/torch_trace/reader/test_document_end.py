# SPDX-License-Identifier: Apache-2.0
"""What stands behind the end of a document is dropped, and said with its offset and its number."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from trace_builder import HEADER, TAIL, event, text, write

from megatron.torch_trace.errors import StrictError
from megatron.torch_trace.files.sources import read_metadata
from megatron.torch_trace.reader import SlimEvent, Trace
from megatron.torch_trace.rewrite.decompression import decompress

FIRST = text(event("a"), event("b", 200_000))
SECOND = text(event("c"), event("d"), event("e"), header=HEADER.replace('"rank": 3', '"rank": 7'))


def read(path: Path) -> tuple[list[str], dict[str, int], dict[str, list[int]]]:
    trace = Trace(path)
    found = [e.name for block in trace.blocks(SlimEvent) for e in block.events]
    return found, dict(trace.damage.counts), trace.damage.offsets


@pytest.mark.parametrize("between", [b"", b"\n\n", b"\0" * 512])
def test_a_second_document_is_said_with_its_events_and_its_offset(
    tmp_path: Path, between: bytes
) -> None:
    path = write(tmp_path / "t.json", FIRST + between + SECOND)
    at = len(FIRST + between) + SECOND.index(b"{")
    assert read(path) == (["a", "b"], {"second_document": 3}, {"second_document": [at]})
    assert read_metadata(path).rank == 3


def test_a_second_member_of_another_writer_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.json.gz"
    path.write_bytes(gzip.compress(FIRST) + gzip.compress(SECOND))
    found, faults, _ = read(path)
    assert (found, faults) == (["a", "b"], {"second_document": 3})
    assert read_metadata(path).rank == 3


def test_a_document_in_many_members_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.json.gz"
    path.write_bytes(b"".join(gzip.compress(FIRST[i : i + 50]) for i in range(0, len(FIRST), 50)))
    assert read(path) == (["a", "b"], {}, {})
    assert not decompress(path, tmp_path / "out.json").damage


def test_a_second_document_of_many_blocks_is_counted_whole(tmp_path: Path) -> None:
    many = text(*[event(f"op{i}", i * 1000) for i in range(20_000)])
    path = write(tmp_path / "t.json", many + many)
    found, faults, offsets = read(path)
    assert len(found) == 20_000
    assert faults == {"second_document": 20_000}
    assert offsets["second_document"] == [len(many) + many.index(b"{")]
    assert read_metadata(path).rank == 3


@pytest.mark.parametrize("rubbish", [b"garbage", b"}", b"<html>", b"{}", b'"x"'])
def test_rubbish_behind_the_end_is_said_in_bytes(tmp_path: Path, rubbish: bytes) -> None:
    path = write(tmp_path / "t.json", FIRST.rstrip() + rubbish)
    found, faults, offsets = read(path)
    assert (found, faults) == (["a", "b"], {"text_after_end": len(rubbish)})
    assert offsets == {"text_after_end": [len(FIRST.rstrip())]}


def test_rubbish_behind_an_array_is_said_once(tmp_path: Path) -> None:
    data = f"[{event('a')}] rubbish".encode()
    found, faults, _ = read(write(tmp_path / "t.json", data))
    assert (found, faults) == (["a"], {"stray_text": 1})


def test_a_second_trace_events_is_said_with_its_events(tmp_path: Path) -> None:
    more = TAIL.replace('"traceName"', f'"traceEvents": [{event("c")}, {event("d")}], "traceName"')
    path = write(tmp_path / "t.json", text(event("a"), tail=more))
    found, faults, _ = read(path)
    assert (found, faults) == (["a"], {"second_events": 2})


def test_a_second_trace_events_of_nothing_is_nothing(tmp_path: Path) -> None:
    more = TAIL.replace('"traceName"', '"traceEvents": [], "traceName"')
    path = write(tmp_path / "t.json", text(event("a"), tail=more))
    assert read(path) == (["a"], {}, {})
    trace = Trace(path)
    assert (list(trace.blocks()) != [], bool(trace.damage)) == (True, False)


def test_a_key_behind_the_events_that_is_not_utf_8_costs_no_event(tmp_path: Path) -> None:
    data = text(event("a"), tail=TAIL).replace(b'"traceName"', b'"\x80traceName"')
    path = write(tmp_path / "t.json", data)
    found, faults, _ = read(path)
    assert (found, faults) == (["a"], {"not_utf8": 1})


def test_a_document_behind_events_without_a_frame_is_said(tmp_path: Path) -> None:
    data = f"[{event('a')}, {event('b')}]".encode()
    found, faults, _ = read(write(tmp_path / "t.json", data + SECOND))
    assert (found, faults["second_document"]) == (["a", "b"], 3)


def test_strict_refuses_what_stands_behind_the_end(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", FIRST + SECOND)
    with pytest.raises(StrictError, match="after the end"):
        list(Trace(path, strict=True).blocks())


def test_decompress_keeps_both_documents_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.json.gz"
    path.write_bytes(gzip.compress(FIRST) + gzip.compress(SECOND))
    result = decompress(path, tmp_path / "out.json")
    assert (tmp_path / "out.json").read_bytes() == FIRST + SECOND
    assert result.damage.counts == {"second_document_kept": 1}
    assert result.damage.offsets == {"second_document_kept": [len(FIRST)]}
    with pytest.raises(StrictError):
        decompress(path, tmp_path / "strict.json", strict=True)
    mended = decompress(path, tmp_path / "mended.json", repair=True)
    assert mended.damage.counts == {"second_document": 3}
    assert len(json.loads((tmp_path / "mended.json").read_bytes())["traceEvents"]) == 2
