# SPDX-License-Identifier: Apache-2.0
"""Where `view` keeps the timeline, and which way leads to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from megatron.torch_trace.errors import TorchTraceError, UsageError
from megatron.torch_trace.viewing import native
from megatron.torch_trace.viewing.addresses import tunnels, url_of
from megatron.torch_trace.viewing.cache import cached_offsets, remember, timeline_file


def window(folder: Path, ranks: int = 2) -> list[Path]:
    traces = [folder / f"rank-{rank}.pt.trace.json.gz" for rank in range(ranks)]
    folder.mkdir(parents=True, exist_ok=True)
    for trace in traces:
        trace.write_text("{}")
    return traces


def test_the_timeline_of_a_window_lies_in_its_artifacts(tmp_path: Path) -> None:
    traces = window(tmp_path / "iter-0000005")
    whole = timeline_file(traces, whole_folder=True)
    assert whole == tmp_path / "iter-0000005" / "artifacts" / "timeline.pftrace.gz"
    part = timeline_file(traces[:1], whole_folder=False)
    assert part.parent == whole.parent
    assert part != whole
    assert part != timeline_file(traces[1:], whole_folder=False)
    assert not whole.parent.exists()


def test_beside_traces_that_nobody_may_write_the_users_cache_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = window(tmp_path / "iter-0000005")
    (tmp_path / "iter-0000005" / "artifacts").write_text("a file, so that it cannot be a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = timeline_file(traces, whole_folder=True)
    assert file.parent.parent == tmp_path / "cache" / "torch-trace"


def test_without_any_folder_to_write_to_there_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = window(tmp_path / "window")
    for name in ("window/artifacts", "cache"):
        (tmp_path / name).write_text("a file, so that it cannot be a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(TorchTraceError, match="neither can be written"):
        timeline_file(traces, whole_folder=True)


def test_a_timeline_is_used_again_until_a_trace_changes(tmp_path: Path) -> None:
    traces = window(tmp_path)
    file = timeline_file(traces, whole_folder=True)
    assert cached_offsets(file, traces) is None
    file.parent.mkdir()
    file.write_bytes(b"timeline")
    assert cached_offsets(file, traces) is None
    remember(file, traces, {0: -7, 1: 1 << 62})
    assert cached_offsets(file, traces) == {0: -7, 1: 1 << 62}
    assert cached_offsets(file, traces[:1]) is None
    os.utime(traces[0], ns=(1, 1))
    assert cached_offsets(file, traces) is None
    remember(file, traces, {0: 0})
    traces[1].write_text("{ }")
    assert cached_offsets(file, traces) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 0}', "{"])
def test_a_broken_note_beside_a_timeline_is_no_note(tmp_path: Path, text: str) -> None:
    traces = window(tmp_path)
    file = timeline_file(traces, whole_folder=True)
    file.parent.mkdir()
    file.write_bytes(b"timeline")
    file.with_name(f"{file.name}.json").write_text(text)
    assert cached_offsets(file, traces) is None


def test_at_ones_own_desk_there_is_no_tunnel() -> None:
    assert tunnels([9123], environ={"USER": "ada"}, host="laptop") == []


def test_in_a_slurm_job_the_way_leads_over_the_host_that_submitted_it() -> None:
    job = {
        "USER": "ada",
        "SLURM_JOB_ID": "7",
        "SLURM_SUBMIT_HOST": "login1.cluster",
        "SLURMD_NODENAME": "node042",
    }
    line = "ssh -L 9123:127.0.0.1:9123 -J ada@login1.cluster ada@node042"
    assert tunnels([9123], environ=job, host="node042.cluster") == [line]


def test_on_the_login_node_itself_a_job_needs_no_jump() -> None:
    allocation = {
        "USER": "ada",
        "SLURM_JOB_ID": "7",
        "SLURM_SUBMIT_HOST": "login1",
        "SSH_CONNECTION": "1.1.1.1 50000 198.51.100.2 22",
    }
    line = "ssh -L 9123:127.0.0.1:9123 ada@login1.cluster"
    assert tunnels([9123], environ=allocation, host="login1.cluster") == [line]


def test_whoever_came_from_a_private_address_may_have_jumped_over_it() -> None:
    session = {"USER": "ada", "SSH_CONNECTION": "10.0.0.1 50000 10.0.0.42 22"}
    assert tunnels([9123], environ=session, host="node042") == [
        "ssh -L 9123:127.0.0.1:9123 ada@node042",
        "ssh -L 9123:127.0.0.1:9123 -J ada@10.0.0.1 ada@node042",
    ]


def test_a_native_trace_processor_needs_a_second_port() -> None:
    session = {"USER": "ada", "SSH_CONNECTION": "1.1.1.1 50000 10.0.0.42 22"}
    line = "ssh -L 10000:127.0.0.1:10000 -L 9001:127.0.0.1:9001 ada@login1"
    assert tunnels([10000, 9001], environ=session, host="login1") == [line]


def test_addresses_can_be_opened_as_they_are() -> None:
    assert url_of("0.0.0.0", 80) == "http://127.0.0.1:80/"
    assert url_of("::1", 80, "/timeline") == "http://[::1]:80/timeline"


def test_what_a_browser_may_not_hold_is_said_before() -> None:
    assert native.too_large(188_000_000) is None
    assert native.too_large(3_000_000_000) == (
        "About 3 GB of JSON: a browser may run out of memory. Look at fewer ranks or one step "
        "(torch-trace slim), or pass --trace-processor BIN."
    )


def program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_the_script_that_downloads_trace_processor_is_told_from_it(tmp_path: Path) -> None:
    script = program(tmp_path / "trace_processor", "#!/usr/bin/env python3\n")
    with pytest.raises(UsageError, match="is the script that downloads trace_processor"):
        native.find_binary(str(script))


def test_a_trace_processor_that_does_not_start_ends_the_view(tmp_path: Path) -> None:
    broken = program(tmp_path / "trace_processor_shell", "#!/bin/sh\nexit 3\n")
    with (
        pytest.raises(TorchTraceError, match="ended with status 3 before it listened"),
        native.serving(native.find_binary(str(broken)), tmp_path / "timeline.pftrace.gz"),
    ):
        pass
