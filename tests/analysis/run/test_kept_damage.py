# SPDX-License-Identifier: Apache-2.0
"""A kept analysis that a disk has changed is never believed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from kept_windows import window_of_two

from megatron.torch_trace.analysis.run import kept_analysis, rank_pool
from megatron.torch_trace.analysis.run.kept_analyses import keep
from megatron.torch_trace.analysis.run.kept_analysis import UnusableError
from megatron.torch_trace.files.parquet import columns_of_several, write_parquet
from megatron.torch_trace.format.file_names import kept_analysis_of

CHECKSUM = "torch_trace.crc32"


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(rank_pool, "_jobs", lambda _: 1)
    window = window_of_two(tmp_path)
    keep([window])
    return kept_analysis_of(window / "rank-0.pt.trace.json")


def content(path: Path, *beside: Path) -> str:
    """All that is taken from a kept analysis, read alone or with others behind it."""
    opened = [kept_analysis.opened(one, lambda _: None) for one in (path, *beside)]
    found, *others = kept_analysis.read(opened)
    assert not any(isinstance(one, UnusableError) for one in others)
    if isinstance(found, UnusableError):
        raise found
    calls = found.outcome.calls
    columns = [getattr(calls, name).tolist() for name in kept_analysis._COLUMNS]
    return repr((found.header, found.outcome.result, calls.kinds, columns))


def written_again(path: Path, **changed: str | None) -> None:
    """The same table with other metadata; None leaves an entry out."""
    held = {**pl.read_parquet_metadata(path)}
    held.pop("ARROW:schema", None)
    for name, value in changed.items():
        key = f"torch_trace.{name}"
        held.pop(key) if value is None else held.update({key: value})
    frame = pl.read_parquet(path)
    write_parquet(frame, path, compression="zstd", metadata=held)


def read_at_once(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each read of several kept analyses was one of all of them."""
    found: list[bool] = []

    def noted(*args: Any) -> Any:
        columns = columns_of_several(*args)
        found.append(columns is not None)
        return columns

    monkeypatch.setattr(kept_analysis, "columns_of_several", noted)
    return found


def test_several_read_at_once_tell_what_each_tells_alone(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = kept.with_name(kept.name.replace("rank-0", "rank-1"))
    at_once = read_at_once(monkeypatch)
    assert content(kept, other, kept) == content(kept)
    assert content(other, kept) == content(other)
    assert content(other) != content(kept)
    assert at_once == [True, False, True, False, False, False]


def test_rows_that_were_taken_for_anothers_are_read_again(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = kept.with_name(kept.name.replace("rank-0", "rank-1"))
    alone = content(kept)

    def confused(contents: Sequence[bytes], names: Sequence[str]) -> Any:
        return (columns_of_several(contents, names) or [])[::-1]

    monkeypatch.setattr(kept_analysis, "columns_of_several", confused)
    assert content(kept, other) == alone


@pytest.mark.parametrize("with_others", [False, True], ids=["alone", "with others"])
def test_whichever_byte_is_changed_the_analysis_is_the_same_or_refused(
    kept: Path, with_others: bool
) -> None:
    whole, before = kept.read_bytes(), content(kept)
    beside = [kept.with_name(kept.name.replace("rank-0", "rank-1"))] if with_others else []
    refused = 0
    for at in range(0, len(whole), max(1, len(whole) // 400)):
        kept.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        try:
            assert content(kept, *beside) == before, f"byte {at} is changed, and believed"
        except UnusableError:
            refused += 1
    assert refused > 200


def test_a_kept_analysis_that_was_cut_is_refused_wherever_it_was(kept: Path) -> None:
    whole = kept.read_bytes()
    for at in range(0, len(whole), max(1, len(whole) // 50)):
        kept.write_bytes(whole[:at])
        with pytest.raises(UnusableError, match="damaged"):
            content(kept)


def test_a_number_that_was_changed_and_makes_sense_is_analysed_anew(kept: Path) -> None:
    before = content(kept)
    result = pl.read_parquet_metadata(kept)["torch_trace.result"]
    changed = re.sub(r'"window_ns":\d', '"window_ns":9', result)
    assert changed != result
    written_again(kept, result=changed)
    with pytest.raises(UnusableError, match="damaged"):
        content(kept)
    assert [path.name for path in keep([kept.parent.parent]).written] == ["rank-0.pt.trace.json"]
    assert content(kept) == before


def test_a_kept_analysis_from_before_there_was_a_checksum_is_still_read(kept: Path) -> None:
    before = content(kept)
    assert CHECKSUM in pl.read_parquet_metadata(kept)
    written_again(kept, crc32=None)
    assert CHECKSUM not in pl.read_parquet_metadata(kept)
    assert content(kept) == before


def test_a_checksum_under_a_name_that_was_changed_is_missed(kept: Path) -> None:
    written_again(kept, crc32=None, crc33="00000000")
    with pytest.raises(UnusableError, match="damaged"):
        content(kept)
