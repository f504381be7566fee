# SPDX-License-Identifier: Apache-2.0
"""`torch-trace info`: facts for machines, names as they are, and files that are no traces."""

from __future__ import annotations

import json
from pathlib import Path

from command_line import run
from trace_builder import HEADER, event, kernel, text, write


def test_json_is_for_machines(clean: Path, broken: Path) -> None:
    (clean.parent / "notes.txt").write_text("hello")
    facts = json.loads(run("info", clean.parent, "--json").stdout)
    assert [t["rank"] for t in facts["traces"]] == [3, 3]
    assert [t["launches"]["launches"] for t in facts["traces"]] == [1, 0]
    assert [s["file"] for s in facts["skipped_files"]] == [str(clean.parent / "notes.txt")]
    verdict = json.loads(run("check", clean, broken, "--json").stdout)
    assert [t["ok"] for t in verdict["traces"]] == [True, False]
    assert verdict["traces"][1]["damage"]["stray_backslash"]["count"] == 1


def test_brackets_in_paths_and_traces_are_no_markup(tmp_path: Path) -> None:
    folder = tmp_path / "run[bold]"
    folder.mkdir()
    (folder / "[red]notes.txt").write_text("hello")
    header = HEADER.replace("NVIDIA H200", "GPU [/] 1").replace(
        '"world_size"', '"[/red]": 1, "world_size"'
    )
    data = text(event("x", cat="[/x]"), kernel("k", 2_000, 3_000, 1), header=header)
    path = write(folder / "rank-0.json", data)
    shown = run("info", path).stdout.decode()
    assert str(path) in shown
    assert "[/x]" in shown
    assert "GPU [/] 1" in shown
    for command in ("info", "check"):
        result = run(command, folder)
        assert f"Skipped {folder}/[red]notes.txt: " in result.stdout.decode(), result.stderr
    small = folder / "[green].json"
    assert f"Wrote {small}: " in run("slim", path, "-o", small).stdout.decode().replace("\n", " ")


def test_strangers_in_a_folder_are_skipped_with_a_reason(clean: Path) -> None:
    folder = clean.parent
    write(folder / "README.gz", b"read me")
    (folder / "list.json").write_text("[1, 2]")
    (folder / "rank-1.json.gz.77.tmp").write_bytes(b"half")
    (folder / "artifacts").mkdir()
    (folder / "artifacts" / "rank-0.stacks.txt").write_text("a;b 1")
    result = run("info", folder)
    assert result.returncode == 0
    skipped = [line for line in result.stdout.decode().splitlines() if line.startswith("Skipped")]
    assert [line.split("/")[-1].split(":")[0] for line in skipped] == [
        "README.gz", "list.json", "rank-1.json.gz.77.tmp",
    ]  # fmt: skip
