# SPDX-License-Identifier: Apache-2.0
"""A request: one small file that asks a training that runs to record a window.

    <run>/requests/
        20261128-173012-4f2a.json           {"schema": 1, "iterations": 2, "ranks": ["0-7"]}
        20261128-173012-4f2a.answer.json    what became of it, written by rank 0

Whoever may write into the folder may ask. What is in a request is checked like flags.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.wording import nearest

REQUESTS = "requests"
"""Folder of a run."""
SUFFIX = ".json"
ANSWER_SUFFIX = ".answer.json"
TRAINING_HAS_ENDED = "training has ended."
"""Why a request is refused that came too late."""
MOST_BYTES = 65_536
SPANS = ("phases", "modules", "sections")
_FIELDS = ("schema", "iterations", "ranks", "spans", "with_stack")


@dataclass(frozen=True, slots=True)
class Request:
    """What somebody asks for.

    Args:
        iterations: how many are to be recorded.
        ranks: words of `--torch-profile-ranks`; None for the ranks of the plan.
        spans: kinds of spans for this window; None for those of the run.
        with_stack: also record Python stacks, in this window.
    """

    iterations: int = 1
    ranks: tuple[str, ...] | None = None
    spans: tuple[str, ...] | None = None
    with_stack: bool = False

    def as_text(self) -> str:
        """What the file holds."""
        fields: dict[str, Any] = {"schema": 1, "iterations": self.iterations}
        if self.ranks is not None:
            fields["ranks"] = list(self.ranks)
        if self.spans is not None:
            fields["spans"] = list(self.spans)
        if self.with_stack:
            fields["with_stack"] = True
        return json.dumps(fields) + "\n"

    @classmethod
    def parse(cls, text: bytes) -> Request:
        """The request that a file holds.

        Raises:
            UsageError: one sentence about what is wrong with it.
        """
        fields = _object(text)
        for name in fields:
            if name not in _FIELDS:
                raise UsageError(f"{_shown(name)}: no such field; {nearest(name, _FIELDS)}")
        if fields.get("schema", 1) != 1 or isinstance(fields.get("schema", 1), bool):
            raise UsageError(f"schema {_shown(fields['schema'])}: must be 1.")
        iterations, with_stack = fields.get("iterations", 1), fields.get("with_stack", False)
        if isinstance(iterations, bool) or not isinstance(iterations, int) or iterations < 1:
            raise UsageError(f"--iterations {_shown(iterations)}: must be 1 or more.")
        if not isinstance(with_stack, bool):
            raise UsageError(f"--with-stack {_shown(with_stack)}: must be true or false.")
        spans = _words(fields, "spans")
        for kind in spans or ():
            if kind not in SPANS:
                raise UsageError(f"--spans {_shown(kind)}: {nearest(kind, SPANS)}")
        return cls(iterations, _words(fields, "ranks"), spans, with_stack)


def new_name() -> str:
    """A name for a request, without its ending, that no other request has."""
    # Imported here: it loads OpenSSL, and others want a name of this module alone.
    from secrets import token_hex

    return f"{time.strftime('%Y%m%d-%H%M%S')}-{token_hex(2)}"


def is_request(name: str) -> bool:
    """Whether a file of the folder is a request, by its name: not an answer, not on its way."""
    return name.endswith(SUFFIX) and not name.endswith(ANSWER_SUFFIX)


def _object(text: bytes) -> dict[str, Any]:
    if len(text) > MOST_BYTES:
        raise UsageError(f"the request is longer than {MOST_BYTES:,} bytes.")
    try:
        fields = json.loads(text.decode())
    except (ValueError, RecursionError):
        raise UsageError("the request is no JSON, or only a part of it.") from None
    if not isinstance(fields, dict):
        raise UsageError('the request is no JSON object such as {"schema": 1, "iterations": 2}.')
    return fields


def _words(fields: dict[str, Any], name: str) -> tuple[str, ...] | None:
    words = fields.get(name)
    if words is None:
        return None
    if not isinstance(words, list) or not words or not all(isinstance(w, str) for w in words):
        raise UsageError(f'--{name} {_shown(words)}: must be a list of words such as ["0"].')
    return tuple(words)


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
