# SPDX-License-Identifier: Apache-2.0
"""How templates of pages are read, the same for every page: all that is shown is escaped."""

from __future__ import annotations

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from megatron.torch_trace.report.html.page_text import shown


def environment(*folders: tuple[str, str]) -> Environment:
    """An environment whose templates lie in one of `folders`: a package, and its folder."""
    return Environment(
        loader=ChoiceLoader([PackageLoader(package, folder) for package, folder in folders]),
        autoescape=True,
        finalize=shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
