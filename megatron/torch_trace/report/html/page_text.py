# SPDX-License-Identifier: Apache-2.0
"""Text from traces on a page: what a browser would not show or would turn around is written out."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from megatron.torch_trace.wording import visible


def shown(value: Any) -> Any:
    """What a template prints of a value: jinja's `finalize`; markup is left as it is."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else visible(value)
