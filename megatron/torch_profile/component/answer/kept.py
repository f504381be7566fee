# SPDX-License-Identifier: Apache-2.0
"""The answer in the run folder: artifacts/component.json and artifacts/component.html."""

from __future__ import annotations

import json
from pathlib import Path

from megatron.torch_profile.component.answer.document import document
from megatron.torch_profile.component.answer.page import render_page
from megatron.torch_profile.component.results import Answer
from megatron.torch_trace.files.atomic import atomic_path
from megatron.torch_trace.format.file_names import ARTIFACTS

_NAME = "component"


def keep(answer: Answer) -> None:
    """Write both."""
    texts = {".html": render_page(answer), ".json": json.dumps(document(answer)) + "\n"}
    page_of(answer).parent.mkdir(exist_ok=True)
    for suffix, text in texts.items():
        with atomic_path(page_of(answer).with_suffix(suffix)) as unfinished:
            unfinished.write_text(text)


def page_of(answer: Answer) -> Path:
    """Where the page is."""
    return answer.run_folder / ARTIFACTS / f"{_NAME}.html"
