# SPDX-License-Identifier: Apache-2.0
"""Compressing a raw trace: what is counted on the way, and what is refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from trace_builder import kernel, launch, text, write

from megatron.torch_profile.export.compression import compress
from megatron.torch_trace.errors import TorchTraceError

LAUNCH, KERNEL = launch(0, 1_000, 1), kernel("gemm", 2_000, 3_000, 1)


def test_events_are_counted_on_the_way_also_where_blocks_meet(tmp_path: Path) -> None:
    # Some 190 bytes an event, so that marks straddle the blocks of 1 MiB.
    raw = write(tmp_path / "raw", text(*[LAUNCH, KERNEL] * 30_000))
    whole = raw.read_bytes()
    written = compress(raw, tmp_path / "out.gz", "gzip")
    assert (written.events, written.kernels, written.launches) == (60_000, 30_000, 30_000)
    assert gzip.decompress((tmp_path / "out.gz").read_bytes()) == whole


@pytest.mark.parametrize("broken", ["", "   ", '{"traceEvents": [', '"x"}', "{}\n garbage"])
def test_what_is_no_whole_document_is_refused_and_kept(tmp_path: Path, broken: str) -> None:
    raw = tmp_path / "raw"
    raw.write_text(broken)
    with pytest.raises(TorchTraceError, match="cut short"):
        compress(raw, tmp_path / "out.gz", "gzip")
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]
