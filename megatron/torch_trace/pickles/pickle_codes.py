# SPDX-License-Identifier: Apache-2.0
"""The codes of a pickle that stand for plain data, by number, and the names of all others.

The codes are those of Python's pickletools (PEP 307, PEP 3154, PEP 574).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

PROTO, STOP, FRAME = 0x80, 0x2E, 0x95
MARK, POP = 0x28, 0x30
EMPTY_DICT, SETITEM, SETITEMS = 0x7D, 0x73, 0x75
EMPTY_LIST, APPEND, APPENDS = 0x5D, 0x61, 0x65
EMPTY_TUPLE, TUPLE, TUPLE1, TUPLE2, TUPLE3 = 0x29, 0x74, 0x85, 0x86, 0x87
BINGET, LONG_BINGET, MEMOIZE, BINPUT, LONG_BINPUT = 0x68, 0x6A, 0x94, 0x71, 0x72
BININT, BININT1, BININT2, LONG1, BINFLOAT = 0x4A, 0x4B, 0x4D, 0x8A, 0x47
NONE, NEWTRUE, NEWFALSE = 0x4E, 0x88, 0x89
SHORT_BINUNICODE, BINUNICODE, BINUNICODE8 = 0x8C, 0x58, 0x8D
SHORT_BINBYTES, BINBYTES = 0x43, 0x42
GLOBAL, STACK_GLOBAL, REDUCE = 0x63, 0x93, 0x52

CALLS_OF_PLAIN_DATA = {
    ("torch.jit._pickle", "restore_type_tag"),
    ("torch.jit._pickle", "build_intlist"),
    ("torch.jit._pickle", "build_doublelist"),
    ("torch.jit._pickle", "build_boollist"),
}
"""What torch's C++ writes around a list or a dictionary: the first argument is the value itself."""


TEXTS = {SHORT_BINUNICODE: 1, BINUNICODE: 4, BINUNICODE8: 8}
BYTES = {SHORT_BINBYTES: 1, BINBYTES: 4}
NUMBERS = {BININT: (4, True), BININT1: (1, False), BININT2: (2, False)}
CONSTANTS: dict[int, Any] = {
    NONE: None,
    NEWTRUE: True,
    NEWFALSE: False,
    EMPTY_TUPLE: (),
}
SMALL_TUPLES = {TUPLE1: 1, TUPLE2: 2, TUPLE3: 3}


@lru_cache(maxsize=1)
def _names() -> dict[int, str]:
    import pickletools

    return {ord(code.code): code.name for code in pickletools.opcodes}


def name(code: int) -> str | None:
    """`STACK_GLOBAL`; None of a code that no pickle has."""
    return _names().get(code)
