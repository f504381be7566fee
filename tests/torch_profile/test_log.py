# SPDX-License-Identifier: Apache-2.0
"""Lines of the user's log: a slug in front, which scripts and documents hold on to."""

from __future__ import annotations

import re

import pytest

from megatron.torch_profile.log import Slug, say, warn


def test_every_line_begins_with_its_slug_and_a_warning_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    say(Slug.PLAN, "%s", "ranks: 0\niterations: 3")
    warn(Slug.EXPORT_FAILED, "rank %d could not write the %s", 3, "trace")
    assert capsys.readouterr().out.splitlines() == [
        "[torch-profile plan] ranks: 0",
        "[torch-profile plan] iterations: 3",
        "[torch-profile export-failed] warning: rank 3 could not write the trace",
    ]


def test_slugs_are_unique_words_that_grep_takes_as_they_are() -> None:
    slugs = [slug.value for slug in Slug.__members__.values()]
    assert len({*slugs}) == len(slugs)
    assert [slug for slug in slugs if not re.fullmatch(r"[a-z]+(-[a-z]+)*", slug)] == []
