# SPDX-License-Identifier: Apache-2.0
"""The version of a kept analysis: a field more is another one."""

from __future__ import annotations

import dataclasses
from importlib import metadata

from megatron.torch_trace.analysis.results.analysis import RankResult
from megatron.torch_trace.analysis.run import kept_analysis


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
