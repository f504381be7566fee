# SPDX-License-Identifier: Apache-2.0
"""Which hosts and pages the server of `view` answers."""

from __future__ import annotations

import pytest
from running_server import TIMELINE, Running

from megatron.torch_trace.viewing.hosts import host_is_ours, origin_is_ours
from megatron.torch_trace.viewing.preparation import Preparation
from megatron.torch_trace.viewing.site import Site


def test_only_this_machine_is_listened_to(running: Running) -> None:
    assert running.server.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8000", "127.0.0.1:1", "LOCALHOST:80", "[::1]:9001"]
)
def test_a_host_of_this_machine_is_answered_through_any_tunnel(host: str) -> None:
    assert host_is_ours(host)


@pytest.mark.parametrize(
    "host",
    [
        "", "evil.example", "evil.example:9001", "127.0.0.1.evil.example", "localhost.evil.example",
        "evil.example@localhost", "localhost/evil.example", "10.0.0.1", "0.0.0.0", "[::2]", "[::1",
    ],
)  # fmt: skip
def test_any_other_host_is_refused(running: Running, host: str) -> None:
    for path in ("/", "/timeline.pftrace.gz", "/ui/", "/nothing"):
        reply, body = running.ask(path, {"Host": host})
        assert reply.status == 403
        assert body == b"This server answers to localhost and 127.0.0.1 only.\n"


def test_whoever_asked_to_listen_everywhere_is_reached_by_number_but_not_by_any_name() -> None:
    everywhere = {"0.0.0.0", "node7"}
    assert host_is_ours("10.1.2.3:80", everywhere)
    assert host_is_ours("node7:80", everywhere)
    assert not host_is_ours("evil.example", everywhere)


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "https://ui.perfetto.dev", "http://127.0.0.1:1", "file://"],
)
def test_a_page_of_another_server_gets_nothing(running: Running, origin: str) -> None:
    for path in ("/", "/offsets", "/timeline.pftrace.gz"):
        reply, body = running.ask(path, {"Origin": origin})
        assert (reply.status, body) == (403, b"Pages of other servers get nothing here.\n")
        assert "Access-Control-Allow-Origin" not in reply.headers


def test_a_page_of_this_server_gets_everything_by_the_name_it_was_opened_under() -> None:
    assert origin_is_ours(None, "localhost:8000")
    assert origin_is_ours("http://localhost:8000", "localhost:8000")
    assert not origin_is_ours("http://localhost:8000", "127.0.0.1:8000")


def test_a_foreign_page_cannot_embed_anything_either(running: Running) -> None:
    embedded = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    assert running.status("/timeline.pftrace.gz", embedded) == 403
    # A link on a foreign page may lead here: the page that it opens sees nothing of it.
    assert (
        running.status("/", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}) == 200
    )


def test_every_answer_forbids_the_browser_to_go_elsewhere(running: Running) -> None:
    for path in ("/", "/ui/", "/timeline.pftrace.gz", "/offsets", "/nothing"):
        reply = running.ask(path)[0]
        policy = dict(
            part.split(" ", 1) for part in reply.headers["Content-Security-Policy"].split("; ")
        )
        assert policy["default-src"] == "'self'"
        assert policy["connect-src"] == "'self' data: blob:"
        assert policy["frame-ancestors"] == "'self'"
        assert reply.headers["X-Content-Type-Options"] == "nosniff"


def test_the_public_ui_gets_the_timeline_and_nothing_else(preparation: Preparation) -> None:
    running = Running(Site(preparation, {}))
    public = {"Origin": "https://ui.perfetto.dev"}
    try:
        reply, body = running.ask("/timeline.pftrace.gz", public)
        assert (reply.status, body) == (200, TIMELINE)
        assert reply.headers["Access-Control-Allow-Origin"] == "https://ui.perfetto.dev"
        preflight = running.ask("/timeline.pftrace.gz", public, "OPTIONS")[0]
        assert preflight.status == 204
        assert preflight.headers["Access-Control-Allow-Private-Network"] == "true"
        for path in ("/", "/offsets", "/traces/0/rank-0.json"):
            assert running.status(path, public) == 403
        assert running.status("/timeline.pftrace.gz", {"Origin": "https://evil.example"}) == 403
    finally:
        running.stop()
