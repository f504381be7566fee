# SPDX-License-Identifier: Apache-2.0
"""The documents as a static site: `python scripts/build_site.py [FOLDER]`, by default `site/`.

The pages are the files of docs/, README.md, CONTRIBUTING.md and SECURITY.md as they are, and one
page of flags that is made of `TorchProfileConfig`. mkdocs.yml says their order. A link that leads
nowhere, or a page that is not in the order, ends it with status 1. Needs the extra [docs].
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from megatron.torch_profile.config import PRESETS, TorchProfileConfig, flag_of  # noqa: E402

REPOSITORY = "https://github.com/megatron-torch-profile/megatron-torch-profile/blob/main"
BESIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""Pages that lie outside of docs/, and their names on the site."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LINK = re.compile(r"(\]\()([^)#\s:]+)((?:#[^)\s]*)?\))")


def main(target: Path) -> int:
    """Build the site; returns the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        pages = work / "pages"
        pages.mkdir()
        for source in sorted((ROOT / "docs").rglob("*")):
            name = source.relative_to(ROOT / "docs")
            (pages / name).parent.mkdir(exist_ok=True)
            if source.suffix == ".md":
                (pages / name).write_text(with_links_of_the_site(source))
            elif source.is_file():
                shutil.copyfile(source, pages / name)
        for name, page in BESIDE.items():
            (pages / page).write_text(with_links_of_the_site(ROOT / name))
        (pages / "all-flags.md").write_text(page_of_flags())
        config = (ROOT / "mkdocs.yml").read_text()
        (work / "mkdocs.yml").write_text(config)
        unordered = sorted(p.name for p in pages.glob("*.md") if f" {p.name}\n" not in config)
        if unordered:
            print(f"mkdocs.yml: nav lacks {', '.join(unordered)}", file=sys.stderr)
            return 1
        done = subprocess.run(
            [sys.executable, "-m", "zensical", "build", "--strict"],
            cwd=work,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            said = _COLOUR.sub("", done.stdout + done.stderr)
            print(said.partition("Traceback")[0].strip(), file=sys.stderr)
            return 1
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(work / "site", target)
    return 0


def with_links_of_the_site(source: Path) -> str:
    """A page, whose links to files that the site does not have lead to the repository."""

    def moved(match: re.Match[str]) -> str:
        path = (source.parent / match[2]).resolve()
        inside = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else match[2]
        if inside in BESIDE:
            inside = BESIDE[inside]
        elif inside.startswith("docs/"):
            inside = inside.removeprefix("docs/")
        else:
            inside = f"{REPOSITORY}/{inside}"
        return f"{match[1]}{inside}{match[3]}"

    return _LINK.sub(moved, source.read_text())


def page_of_flags() -> str:
    """Every flag as the parser has it: default, values, and the help that `--help` shows."""
    lines = [
        "# All flags, as the program says them",
        "",
        "Made of `TorchProfileConfig`. [Flags](flags.md) says when to use which.",
        "",
    ]
    for one in dataclasses.fields(TorchProfileConfig):
        options: dict[str, Any] = dict(one.metadata["argparse"])
        default = one.default if one.default is not dataclasses.MISSING else one.default_factory()  # type: ignore[misc]
        lines += [f"## `{flag_of(one.name)}`", "", one.metadata["help"].replace("<", "&lt;"), ""]
        if options.get("choices"):
            lines += [f"- values: {', '.join(f'`{value}`' for value in options['choices'])}"]
        shown = " ".join(map(str, default)) if isinstance(default, list) else default
        if shown is None or shown is False:
            lines += [f"- default: {'not set' if shown is None else 'off'}", ""]
        else:
            lines += [f"- default: `{shown}`", ""]
    lines += ["## What presets switch on", "", "| preset | flags |", "|---|---|"]
    for name, fields in PRESETS.items():
        flags = [
            flag_of(key) + ("" if value is True else f" {' '.join(value)}")
            for key, value in fields.items()
        ]
        lines.append(f"| `{name}` | {', '.join(f'`{one}`' for one in flags)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "site")))
