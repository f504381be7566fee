# SPDX-License-Identifier: Apache-2.0
"""Ranks that the timeline does not show: who may ask for them, how, and what is made."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from running_server import Running
from trace_builder import GEMM, TraceBuilder

from megatron.torch_trace.errors import TorchTraceError, UsageError
from megatron.torch_trace.viewing import cache
from megatron.torch_trace.viewing.other_ranks import OtherRanks, named_ranks
from megatron.torch_trace.viewing.preparation import Preparation
from megatron.torch_trace.viewing.site import Site
from megatron.torch_trace.viewing.timeline_ranks import MOST_RANKS
from megatron.torch_trace.viewing.token import Token

COUNT = MOST_RANKS + 4


@pytest.fixture
def preparation(tmp_path: Path) -> Iterator[Preparation]:
    """Twenty ranks whose timeline shows sixteen."""
    traces = []
    for rank in range(COUNT):
        trace = TraceBuilder(rank, COUNT).step(1, 0, 9000).gpu(GEMM, 1000, 5000, launch=500)
        traces.append(trace.write(tmp_path / "window" / f"rank-{rank:02d}.pt.trace.json.gz"))
    made = Preparation(traces, whole_folder=True, links=None, timeline_first=True, chooses=True)
    made.start()
    made.wait_for_timeline()
    yield made
    made.stop()


@pytest.fixture
def running(preparation: Preparation, ui: dict[str, Path]) -> Iterator[Running]:
    one = Running(Site(preparation, ui))
    yield one
    one.stop()


def offsets(running: Running, query: str = "") -> dict:
    return json.loads(running.ask(f"/offsets{query}")[1])


def made(running: Running, query: str = "") -> dict:
    """What is told when the last timeline that was asked for is there, or cannot be made."""
    end = time.monotonic() + 300
    while (now := offsets(running, query))["loading"] and now["loading"]["state"] == "converting":
        assert time.monotonic() < end
        time.sleep(0.02)
    return now


def test_a_rank_that_is_added_replaces_the_least_needed_one(running: Running) -> None:
    before = offsets(running)
    assert (before["ranks"], before["most"], before["loading"]) == ("0-19", MOST_RANKS, None)
    assert before["timeline"] == "/timeline.pftrace.gz"
    shown = named_ranks(before["shown"], range(COUNT))
    (absent, *_) = sorted(set(range(COUNT)) - set(shown))
    first = running.ask("/timeline.pftrace.gz")[1]
    reply, body = running.ask(f"/ranks?add={absent}", method="POST")
    assert (reply.status, body) == (202, b"")
    now = made(running)
    assert now["timeline"] == "/timelines/1.pftrace.gz"
    assert set(named_ranks(now["shown"], range(COUNT))) == {absent, *shown[:-1]}
    assert set(map(int, now["offset_ns"])) == {absent, *shown[:-1]}
    file = running.ask(now["timeline"])[1]
    assert file != first
    assert running.ask("/timeline.pftrace.gz")[1] == file


def test_ranks_that_are_named_are_shown_alone_and_the_last_ones_asked_for_win(
    running: Running, preparation: Preparation
) -> None:
    for text in ("0-3", "7", "4,%206-8"):
        assert running.ask(f"/ranks?show={text}", method="POST")[0].status == 202
    assert made(running)["shown"] == "4, 6-8"
    files = set((preparation.traces[0].parent / "artifacts").glob("timeline-*"))
    preparation.stop()
    left = set((preparation.traces[0].parent / "artifacts").glob("timeline-*"))
    assert left == {one for one in files if one.name.startswith(preparation.file.name)}


def test_a_timeline_that_cannot_be_made_is_a_sentence_and_the_one_before_stays(
    running: Running, preparation: Preparation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise TorchTraceError("the disk is full.")

    monkeypatch.setattr(cache, "converted", fail)
    before = offsets(running)
    running.ask("/ranks?show=17", method="POST")
    now = made(running)
    assert now["loading"] == {"state": "failed", "message": "Rank 17: the disk is full."}
    assert now["timeline"] == before["timeline"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "No rank is named; 0-3,17 would be right."),
        (", ,", "No rank is named; 0-3,17 would be right."),
        ("x", "x: no rank, and no range of ranks such as 0-3."),
        ("-1", "-1: no rank, and no range of ranks such as 0-3."),
        ("1.5", "1.5: no rank, and no range of ranks such as 0-3."),
        ("\u0663", "\u0663: no rank, and no range of ranks such as 0-3."),
        ("0-3:2", "0-3:2: no rank, and no range of ranks such as 0-3."),
        ("../secret", "../secret: no rank, and no range of ranks such as 0-3."),
        ("1\x00\x1b[2J", "1??[2J: no rank, and no range of ranks such as 0-3."),
        ("9" * 50, "9" * 40 + "...: no rank, and no range of ranks such as 0-3."),
        ("3-1", "3-1: ends before it begins; 1-3 would be right."),
        ("20", "Rank 20: no trace has this rank; there are 0-19."),
        ("18-999999999", "Rank 20: no trace has this rank; there are 0-19."),
        ("0-16", "17 ranks: the timeline shows 16 at most; name fewer."),
    ],
)
def test_what_names_no_ranks_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as error:
        named_ranks(text, range(COUNT))
    assert str(error.value) == sentence


def test_ranks_are_named_as_people_write_them() -> None:
    assert named_ranks(" 0-3, 17 2,2", range(COUNT)) == [0, 1, 2, 3, 17]


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("?show=x", b"x: no rank, and no range of ranks such as 0-3.\n"),
        ("?add=<img>", b"<img>: no rank, and no range of ranks such as 0-3.\n"),
        ("?add=", b"No rank is named; 0-3,17 would be right.\n"),
        ("", b"add or show must name ranks, such as show=0-3,17.\n"),
    ],
)
def test_a_wrong_request_is_answered_with_the_sentence_as_text(
    running: Running, query: str, sentence: bytes
) -> None:
    reply, body = running.ask(f"/ranks{query}", method="POST")
    assert (reply.status, body) == (400, sentence)
    assert reply.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert offsets(running)["loading"] is None


def test_only_our_own_page_may_ask_for_ranks(running: Running) -> None:
    address = f"http://127.0.0.1:{running.server.port}"
    for origin in ("http://evil.example", "null", "https://ui.perfetto.dev", "http://127.0.0.1:1"):
        assert running.ask("/ranks?show=0", {"Origin": origin}, "POST")[0].status == 403
    assert running.ask("/ranks?show=0", {"Host": "evil.example"}, "POST")[0].status == 403
    assert offsets(running)["loading"] is None
    assert running.status("/ranks?show=0") == 404  # a link or an image cannot ask for anything
    assert running.ask("/ranks?show=0", {"Origin": address}, "POST")[0].status == 202
    assert made(running)["shown"] == "0"


def test_the_public_ui_gets_none_of_it(preparation: Preparation) -> None:
    running = Running(Site(preparation, {}))
    public = {"Origin": "https://ui.perfetto.dev"}
    try:
        assert running.ask("/ranks?show=0", public, "POST")[0].status == 403
        assert running.ask("/timeline.pftrace.gz", public, "POST")[0].status == 501
    finally:
        running.stop()


def test_without_the_token_nobody_may_ask_for_ranks(
    preparation: Preparation, ui: dict[str, Path]
) -> None:
    token = Token()
    running = Running(Site(preparation, ui, token=token))
    try:
        assert running.ask("/ranks?show=0", method="POST")[0].status == 403
        assert running.ask("/ranks?show=0&token=x", method="POST")[0].status == 403
        assert running.status("/timelines/1.pftrace.gz") == 403
        given = token.query().removeprefix("?")
        assert running.ask(f"/ranks?show=0&{given}", method="POST")[0].status == 202
        made(running, f"?{given}")
        assert running.status("/timelines/1.pftrace.gz") == 403
        assert running.status(f"/timelines/1.pftrace.gz?{given}") == 200
    finally:
        running.stop()


@pytest.mark.parametrize(
    "path", ["/timelines/", "/timelines/9.pftrace.gz", "/timelines/../secret", "/timelines/%2e%2e"]
)
def test_no_timeline_can_be_named_that_was_not_made(running: Running, path: str) -> None:
    assert running.status(path) == 404


def test_where_all_ranks_are_shown_there_is_nothing_to_ask_for(tmp_path: Path) -> None:
    trace = TraceBuilder(0, 1).gpu(GEMM, 1000, 5000).write(tmp_path / "rank-0.json")
    preparation = Preparation([trace], whole_folder=True, links=None)
    running = Running(Site(preparation, {}))
    try:
        reply, body = running.ask("/ranks?show=0", method="POST")
        assert (reply.status, body) == (409, b"There are no other ranks to be loaded.\n")
    finally:
        running.stop()


def test_what_was_asked_for_and_is_not_wanted_any_more_is_left(
    preparation: Preparation, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = []

    def converted(file: Path, traces: list[Path], on_progress: object) -> tuple[dict, bool]:
        begun.append([trace.name for trace in traces])
        while len(begun) == 1:
            on_progress(0.5)  # raises when the next one is asked for
            time.sleep(0.01)
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"timeline")
        return {5: 0}, False

    monkeypatch.setattr(cache, "converted", converted)
    said: list[str] = []
    others = OtherRanks(preparation.others._traces, [0], said.append)
    others.show("4")
    while not begun:
        time.sleep(0.01)
    others.show("5")
    while others.loading is not None:
        time.sleep(0.01)
    others.stop()
    assert begun == [["rank-04.pt.trace.json.gz"], ["rank-05.pt.trace.json.gz"]]
    assert (others.shown, said) == ([5], ["The timeline shows rank 5."])
