# SPDX-License-Identifier: Apache-2.0
"""Files beside traces that are not what they should be end no command, whoever reads them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from megatron.torch_trace.files.json_object import read_object
from megatron.torch_trace.format.file_names import RUN_FILE
from megatron.torch_trace.inspect.run_state import run_state


@pytest.mark.parametrize(
    "text",
    [b"", b'{"plan": ', b"[1]", b"\xff\xfe", b"[" * 200_000],
    ids=["empty", "cut short", "a list", "no UTF-8", "nested"],
)
def test_a_file_without_an_object_is_an_error_of_its_value(tmp_path: Path, text: bytes) -> None:
    (tmp_path / RUN_FILE).write_bytes(text)
    with pytest.raises(ValueError, match=r".+"):
        read_object(tmp_path / RUN_FILE)
    assert run_state(tmp_path).plan is None


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="it is no regular file"):
        read_object(tmp_path / "pipe")
