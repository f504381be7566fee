# SPDX-License-Identifier: Apache-2.0
"""Files of other tools: every command names what a file is, and the way out, in the same words."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import sqlite3
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import invoked, output, run
from trace_builder import event, kernel, launch, step, text, write

FAULTS = Path(__file__).parents[2] / "data" / "faults"


def zipped(name: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(name, b"{}")
    return made.getvalue()


def tarred() -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("trace.json"), io.BytesIO())
    return made.getvalue()


def database(folder: Path) -> bytes:
    path = folder / "made.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT)")
    connection.close()
    data = path.read_bytes()
    path.unlink()
    return data


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:abab\nsize 123456\n"
PFTRACE = b"\x0a\x24\x50\x01\x62\x12\x08\x80\xf4\x03\x12\x0crank 0 \xff"
XPLANE = b"\x0a\x97\x02\x08\x01\x12\x09/host:CPU\x1a\x10\x08\x01"

STRANGERS: dict[str, tuple[bytes | Callable[[Path], bytes], str]] = {
    "pointer": (POINTER, "git lfs pull"),
    "zip": (zipped("trace.json"), "a zip archive; unpack it"),
    "checkpoint": (zipped("archive/data.pkl"), "a file of torch.save"),
    "tar": (tarred(), "a tar archive; unpack it"),
    "snapshot": (pickle.dumps({"segments": []}), "pytorch.org/memory_viz"),
    "pftrace": (PFTRACE, "ui.perfetto.dev"),
    "xplane": (XPLANE, "XProf"),
    "sqlite": (database, "nsys export"),
    "nsys json": (b'{"Type":48,"CudaEvent":{"startNs":"1"}}\n', "nsys export"),
    "chakra": (b'{"schema": "1.0.2-chakra.0.0.4", "nodes": []}', "execution trace (Chakra)"),
    "events": (b'\x18\0\0\0\0\0\0\0\xa3\x7fK"\t\0\0\xc0\x1a\x0dbrain.Event:2', "TensorBoard"),
    "page": (b"<!DOCTYPE html><html>", "an HTML or XML page"),
    "xz": (b"\xfd7zXZ\0\0\4", "unxz"),
}


@pytest.mark.parametrize("kind", STRANGERS)
@pytest.mark.parametrize("packed", [False, True])
def test_a_file_that_is_no_trace_is_named_with_the_way_out(
    tmp_path: Path, kind: str, packed: bool
) -> None:
    made, words = STRANGERS[kind]
    data = made if isinstance(made, bytes) else made(tmp_path)
    path = tmp_path / ("trace.json.gz" if packed else "trace.json")
    path.write_bytes(gzip.compress(data) if packed else data)
    for command in (["info"], ["check"], ["analyze"]):
        result = invoked(*command, path)
        assert words in str(result.exception), command
        assert type(result.exception).__name__ in ("NotATraceError", "UsageError")


def test_every_command_names_a_pointer_of_git_lfs(tmp_path: Path) -> None:
    path = str(FAULTS / "18-lfs-pointer.json.gz")
    out = str(tmp_path / "out")
    for command in (
        ["info", path], ["check", path], ["analyze", path], ["report", path, "-o", out + ".html"],
        ["slim", path, "-o", out + ".json"], ["convert", path, "-o", out + ".pftrace"],
        ["decompress", path, "-o", out], ["export", path, "-o", out], ["compare", path, path],
        ["sql", path, "select * from ranks"], ["sql", path, "select * from findings"],
        ["merge", path, path, "--ranks", "0,1", "-o", out], ["view", path, "--no-browser"],
    ):  # fmt: skip
        ended = run(*command)
        said = (ended.stdout + ended.stderr).decode()
        assert (ended.returncode, "git lfs pull" in said) == (2, True), (command, said)
        assert "Traceback" not in said


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("05-jax.trace.json.gz", "A trace of JAX or TensorFlow (XLA), not of torch.profiler"),
        ("05-legacy-autograd.json", "A trace of torch.autograd.profiler's old exporter"),
        ("05-begin-end.json", "Events are written as begin and end (B, E)"),
    ],
)
def test_a_trace_of_another_maker_is_named_by_info_check_and_analyze(file: str, words: str) -> None:
    for command in ("info", "check", "analyze"):
        result = invoked(command, FAULTS / file)
        said = " ".join(f"{result.output} {result.exception}".split())
        assert words in said, command
        for wrong in ("cpu cuda", "not recorded (another", "have no kernel", "No GPU work"):
            assert wrong not in said, command


def test_a_trace_of_torch_with_a_few_begins_of_its_user_is_torch_s(tmp_path: Path) -> None:
    user = event("mine", dur=None, ph="B"), event("mine", dur=None, ph="E")
    work = [step(1, 100_000, 1_000_000), launch(110_000, 115_000, 7)]
    work += [kernel("gemm", 1000 * (200 + i), 1000 * (201 + i), 7) for i in range(30)]
    path = write(tmp_path / "rank-0.json", text(*work, *user))
    document = json.loads(output("analyze", path, "--json"))
    assert document["ranks"][0]["breakdown_ns"] is not None
