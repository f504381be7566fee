# SPDX-License-Identifier: Apache-2.0
"""How templates and assets of pages are read, the same for every page: all that is shown is
escaped, and what pages have in common (their head, their colours) lies with the report's."""

from __future__ import annotations

from functools import cache
from importlib import resources

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from megatron.torch_trace.report.html.page_text import shown

REPORT = "megatron.torch_trace.report.html"
"""The package whose templates and assets all pages share."""


@cache
def asset(name: str, package: str = REPORT) -> str:
    """The text of a file in the folder `assets` of a package."""
    return resources.files(package).joinpath("assets", name).read_text(encoding="utf-8")


def environment(*folders: tuple[str, str]) -> Environment:
    """An environment whose templates lie in one of `folders` (a package, and its folder), else
    beside the report's."""
    packages = (*folders, (REPORT, "templates"))
    return Environment(
        loader=ChoiceLoader([PackageLoader(package, folder) for package, folder in packages]),
        autoescape=True,
        finalize=shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
