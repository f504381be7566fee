# SPDX-License-Identifier: Apache-2.0
"""torch's flight recorder, switched on before process groups are made."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

_SIZE = "2000"
_NAME, _OLD_NAME = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
_RENAMED = (2, 9)


def switch_on(torch_version: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """Have torch keep its last collectives of NCCL, as newer versions do by themselves.

    What the user has set stays.
    """
    if _NAME in environment or _OLD_NAME in environment:
        return
    numbers = torch_version.split(".")[:2]
    new = all(one.isdecimal() for one in numbers) and tuple(map(int, numbers)) >= _RENAMED
    environment[_NAME if new else _OLD_NAME] = _SIZE
