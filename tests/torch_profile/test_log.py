# SPDX-License-Identifier: Apache-2.0
"""Lines of the user's log: a slug in front, which scripts and documents hold on to."""

from __future__ import annotations

import io
import os
import re
import sys
from typing import Any

import pytest

from megatron.torch_profile.log import Slug, exit_with, say, warn
from megatron.torch_trace.errors import UsageError


class Pipe(io.RawIOBase):
    """Notes each piece that is written to it at once, as another process would see it."""

    def __init__(self) -> None:
        self.pieces: list[str] = []

    def writable(self) -> bool:
        return True

    def write(self, piece: Any) -> int:
        self.pieces.append(bytes(piece).decode())
        return len(piece)


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


def test_a_line_is_one_piece_whatever_training_has_printed_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipe = Pipe()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(pipe)))
    print("x" * 4000)
    say(Slug.PLAN, "ranks: %s", "0" * 400)
    assert pipe.pieces == ["x" * 4000 + "\n", f"[torch-profile plan] ranks: {'0' * 400}\n"]


def test_a_sentence_that_ends_training_is_one_piece_where_nothing_is_buffered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipe = Pipe()
    unbuffered: Any = pipe
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(unbuffered, write_through=True))
    with pytest.raises(SystemExit):
        exit_with(UsageError("--torch-profile-ranks 7: ranks must be 0 to 1."))
    assert pipe.pieces == ["torch-profile: error: --torch-profile-ranks 7: ranks must be 0 to 1.\n"]


def test_a_line_that_comes_amid_a_print_goes_past_its_buffer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Busy(io.StringIO):
        def write(self, text: str) -> int:
            raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stdout>'>")

        def fileno(self) -> int:
            return its

    ours, its = os.pipe()
    monkeypatch.setattr(sys, "stdout", Busy())
    warn(Slug.SIGNAL, "rank 0 received SIGTERM")
    os.close(its)
    with os.fdopen(ours) as output:
        assert output.read() == "[torch-profile signal] warning: rank 0 received SIGTERM\n"
