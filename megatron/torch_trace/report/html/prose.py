# SPDX-License-Identifier: Apache-2.0
"""Sentences of ours on a page: code in backticks, numbers that keep their unit, whole arrows."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

from megatron.torch_trace.wording import visible

_UNIT = re.compile(r"(?<=\d) (?=(?:%|ns|us|ms|s|kB|MB|GB|TB)(?:\W|$))")


def prose(sentence: str) -> Markup:
    """A sentence: what stands in backticks is code, a number and its unit stay together.

    A line could end between the two characters of `->`, so a page has an arrow there.
    """
    kept = _UNIT.sub("\u00a0", visible(sentence)).replace(" -> ", " → ")
    parts = kept.split("`")
    if len(parts) % 2 == 0:
        return escape(kept)
    marked = [
        Markup("<code>{}</code>").format(p) if n % 2 else escape(p) for n, p in enumerate(parts)
    ]
    return Markup("").join(marked)
