# SPDX-License-Identifier: Apache-2.0
"""What other users of the machine get from `view`: nothing, whatever they ask or put in its way."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from guarded_server import (
    ASK,
    NOBODY,
    PATHS,
    REFUSED,
    TIMELINE,
    TRACE,
    a_site,
    as_a_second_user,
    as_root,
    ask,
    replaced_by_a_link,
    running,
)

from megatron.torch_trace.viewing import browser
from megatron.torch_trace.viewing.preparation import Preparation
from megatron.torch_trace.viewing.server import Server
from megatron.torch_trace.viewing.site import Site
from megatron.torch_trace.viewing.token import Token


@pytest.mark.parametrize("path", PATHS)
def test_without_the_token_no_path_tells_anything(server: Server, path: str) -> None:
    for sent in (path, f"{path}?token=", f"{path}?token=x", f"{path}?token=%ff"):
        reply, body = ask(server, sent)
        assert (reply.status, body) == (403, REFUSED)
    for cookie in ("x", "token=", f"torch-trace-{server.port}=", f"torch-trace-{server.port}=\xff"):
        reply, body = ask(server, path, {"Cookie": cookie})
        assert (reply.status, body) == (403, REFUSED)
    assert ask(server, path, method="HEAD")[0].status == 403
    assert ask(server, path, method="OPTIONS")[0].status == 403


def test_a_program_that_is_given_the_printed_address_gets_what_it_asks_for(
    server: Server, token: Token
) -> None:
    reply, body = ask(server, f"/{token.query()}")
    assert (reply.status, body) == (200, b"<p>the report</p>")
    assert ask(server, f"/timeline.pftrace.gz{token.query()}")[1] == TIMELINE
    assert ask(server, f"/nothing{token.query()}")[0].status == 404


def test_a_browser_gets_a_cookie_and_an_address_without_the_token(
    server: Server, token: Token
) -> None:
    page = {"Accept": "text/html,*/*;q=0.8"}
    reply, body = ask(server, f"/timeline{token.query()}", page)
    assert (reply.status, reply.headers["Location"], body) == (303, "/timeline", b"")
    cookie, *attributes = reply.headers["Set-Cookie"].split("; ")
    assert cookie.startswith(f"torch-trace-{server.port}=")
    assert attributes == ["Path=/", "HttpOnly", "SameSite=Lax"]
    for path, status in zip(PATHS, (200, 200, 200, 200, 200, 200, 404), strict=True):
        assert ask(server, path, page | {"Cookie": f"theme=dark; {cookie}; x"})[0].status == status


def test_a_cookie_of_another_port_is_another_servers(server: Server, token: Token) -> None:
    cookie = token.cookie("127.0.0.1:1").split(";")[0]
    assert ask(server, "/", {"Cookie": cookie})[0].status == 403


def test_a_foreign_page_cannot_use_the_cookie_of_its_visitor(server: Server, token: Token) -> None:
    cookie = token.cookie(f"127.0.0.1:{server.port}").split(";")[0]
    embedded = {"Cookie": cookie, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    assert ask(server, "/timeline.pftrace.gz", embedded)[0].status == 403
    asked = {"Cookie": cookie, "Origin": "https://evil.example"}
    assert ask(server, "/", asked)[0].status == 403


def test_the_public_ui_is_given_the_timeline_and_no_key_to_the_rest(
    preparation: Preparation, token: Token
) -> None:
    public = {"Origin": "https://ui.perfetto.dev"}
    site = Site(preparation, {}, token=token)
    for server in running(Server(site, host="127.0.0.1", port=0)):
        page = ask(server, f"/timeline{token.query()}")[1].decode()
        key = token.query("/timeline.pftrace.gz")
        assert f"/timeline.pftrace.gz{key}" in page
        assert token.query() not in page
        reply, body = ask(server, f"/timeline.pftrace.gz{key}", public)
        assert (reply.status, body) == (200, TIMELINE)
        assert ask(server, f"/timeline.pftrace.gz{key}", public, "OPTIONS")[0].status == 204
        assert ask(server, "/timeline.pftrace.gz", public)[0].status == 403
        assert ask(server, f"/timeline.pftrace.gz{key}", {"Accept": "text/html"})[0].status == 200
        for path in ("/", "/traces/0/rank-0.json", "/offsets"):
            assert ask(server, f"{path}{key}")[0].status == 403


def test_two_servers_have_two_tokens() -> None:
    assert Token().query() != Token().query()


def replaced_by_a_hard_link(trace: Path, secret: Path) -> None:
    trace.unlink()
    os.link(secret, trace)


def replaced_by_a_pipe(trace: Path, secret: Path) -> None:
    trace.unlink()
    os.mkfifo(trace)


def replaced_by_a_folder(trace: Path, secret: Path) -> None:
    trace.unlink()
    trace.mkdir()


def in_another_folder_of_that_name(trace: Path, secret: Path) -> None:
    """What it leads to is not served, whatever it is; what was there first still is."""
    trace.parent.rename(trace.parent.with_name("away"))
    trace.parent.mkdir()
    trace.symlink_to(secret)


@pytest.mark.parametrize(
    ("replace", "answer"),
    [
        (replaced_by_a_link, (404, b"Not here any more.\n")),
        (replaced_by_a_hard_link, (404, b"Not here any more.\n")),
        (replaced_by_a_pipe, (404, b"Not here any more.\n")),
        (replaced_by_a_folder, (404, b"Not here any more.\n")),
        (in_another_folder_of_that_name, (200, TRACE)),
    ],
)
def test_a_trace_is_what_it_was_at_the_start_whatever_its_name_leads_to_now(
    open_server: Server, tmp_path: Path, replace, answer: tuple[int, bytes]
) -> None:
    trace = tmp_path / "window" / "rank-0.json"
    assert ask(open_server, "/traces/0/rank-0.json")[1] == TRACE
    replace(trace, tmp_path / "id_ed25519")
    reply, body = ask(open_server, "/traces/0/rank-0.json")
    assert (reply.status, body) == answer
    assert (b"rank-0.json" in ask(open_server, "/traces/")[1]) == (answer[0] == 200)


def test_a_timeline_is_what_it_was_when_it_was_ready(
    open_server: Server, preparation: Preparation, tmp_path: Path
) -> None:
    assert ask(open_server, "/timeline.pftrace.gz")[1] == TIMELINE
    replaced_by_a_link(preparation.file, tmp_path / "id_ed25519")
    assert ask(open_server, "/timeline.pftrace.gz")[0].status == 404


def test_a_trace_whose_name_leads_out_of_the_folder_at_the_start_cannot_be_downloaded(
    preparation: Preparation, tmp_path: Path
) -> None:
    planted = tmp_path / "window" / "rank-1.json"
    planted.symlink_to(tmp_path / "id_ed25519")
    inside = tmp_path / "window" / "rank-2.json"
    inside.symlink_to("rank-0.json")
    preparation.traces += [planted, inside]
    for server in running(Server(a_site(preparation, None), host="127.0.0.1", port=0)):
        assert ask(server, "/traces/1/rank-1.json")[0].status == 404
        assert ask(server, "/traces/2/rank-2.json")[1] == TRACE


@as_root
def test_a_second_user_of_the_machine_reaches_the_port_and_reads_nothing(server: Server) -> None:
    paths = (*PATHS, "/traces/0/rank-0.json")
    said = as_a_second_user(ASK, str(server.port), *paths)
    assert said == f"{NOBODY} 403 {REFUSED.decode()}" * len(paths)


@as_root
def test_without_a_token_a_second_user_reads_the_trace_and_not_what_replaces_it(
    open_server: Server, tmp_path: Path
) -> None:
    where = (str(open_server.port), "/traces/0/rank-0.json")
    assert as_a_second_user(ASK, *where) == f"{NOBODY} 200 {TRACE.decode()}"
    replaced_by_a_link(tmp_path / "window" / "rank-0.json", tmp_path / "id_ed25519")
    assert as_a_second_user(ASK, *where) == f"{NOBODY} 404 Not here any more.\n"


def test_a_browsers_arguments_which_all_users_see_do_not_hold_the_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[str] = []
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(browser.webbrowser, "open", opened.append)
    with browser.opened_at("http://127.0.0.1:8000/?token=abc"):
        (address,) = opened
        assert "abc" not in address
        page = Path(urlsplit(address).path)
        assert 'url=http://127.0.0.1:8000/?token=abc"' in page.read_text()
        assert stat.S_IMODE(page.parent.stat().st_mode) == 0o700
    assert not page.exists()
