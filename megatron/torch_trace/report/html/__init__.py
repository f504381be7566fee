# SPDX-License-Identifier: Apache-2.0
"""The report as one self-contained page; numbers come from `analysis`, here they are laid out.

page       the page from its sections         parts       tables, rows, cells, sections
links      what the page of `torch-trace view` links to
others     one module a section; templates/ and assets/ hold what is not Python
"""

from __future__ import annotations

from megatron.torch_trace.report.html.links import ViewLinks
from megatron.torch_trace.report.html.page import render_html

__all__ = ["ViewLinks", "render_html"]
