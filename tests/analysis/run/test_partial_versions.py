# SPDX-License-Identifier: Apache-2.0
"""Kept analyses of other versions: by their fields, and by their names."""

from __future__ import annotations

import dataclasses
from importlib import metadata
from pathlib import Path

from megatron.torch_trace.analysis.results.analysis import RankResult
from megatron.torch_trace.analysis.run import kept_analysis
from megatron.torch_trace.format.file_names import found_analysis_of, kept_analysis_of, trace_of


def test_a_field_more_in_any_table_is_another_version() -> None:
    @dataclasses.dataclass
    class Row:
        one: int

    @dataclasses.dataclass
    class Result:
        rows: tuple[Row, ...]

    Result.__annotations__["rows"] = tuple[Row, ...]
    assert kept_analysis.nested(Result) == {Result, Row}
    assert RankResult in kept_analysis.nested(kept_analysis.RankOutcome)


def test_the_version_of_a_checkout_is_that_of_an_installed_package() -> None:
    # A job with the checkout on its PYTHONPATH writes what the user's own computer reads.
    assert kept_analysis.version().startswith(f"{metadata.version('megatron-torch-profile')}+")


def test_an_analysis_kept_under_its_old_name_is_still_found(tmp_path: Path) -> None:
    trace = tmp_path / "iter-0000005" / "rank-0.pt.trace.json"
    old = trace.parent / "artifacts" / f"{trace.name}.partial.parquet"
    old.parent.mkdir(parents=True)
    assert found_analysis_of(trace) == kept_analysis_of(trace)
    old.touch()
    assert (found_analysis_of(trace), trace_of(old)) == (old, trace)
    kept_analysis_of(trace).touch()
    assert found_analysis_of(trace) == kept_analysis_of(trace)
    assert trace_of(kept_analysis_of(trace)) == trace
