# SPDX-License-Identifier: Apache-2.0
"""The report as one self-contained page; numbers come from `analysis`, here they are laid out.

page       the page from its sections         page_text   text from traces on a page
links      what the page of `torch-trace view` links to
templates/ and assets/ hold what is not Python; a section that draws more than tables has a template
"""

from __future__ import annotations

from megatron.torch_trace.report.html.links import ViewLinks
from megatron.torch_trace.report.html.page import render_html

__all__ = ["ViewLinks", "render_html"]
