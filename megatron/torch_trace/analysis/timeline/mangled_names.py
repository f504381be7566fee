# SPDX-License-Identifier: Apache-2.0
"""Kernel names as the compiler mangled them, which ROCm's tracers often write: read for people.

    _ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEE...
    -> at::native::vectorized_elementwise_kernel<CUDAFunctor_add>

Only the identifiers are read, in their order: what a name needs to be known by.
"""

from __future__ import annotations

import re

_PIECE = re.compile(r"(\d+)|L[a-z]+n?\d*E?|S[0-9A-Z]*_|T\d*_|.")
"""The length of an identifier; or a literal, a reference to what came before, any other mark."""
_ANONYMOUS = "_GLOBAL__N_"
_MOST = 1_000
"""Pieces of one name that are looked at."""


def demangled(name: str) -> str:
    """A mangled name as `namespace::function<identifiers of its arguments>`; others as they are."""
    text = name.removesuffix(".kd")
    if not text.startswith("_Z"):
        return text
    outer: list[str] = []
    inner: list[str] = []
    position = 2
    within = False
    for _ in range(_MOST):
        piece = _PIECE.match(text, position)
        if piece is None:
            break
        position = piece.end()
        if piece[1] is None:
            # The first `I` opens the arguments of the template; `E` ends the name.
            within = within or (bool(outer) and piece[0] in ("I", "E"))
            continue
        word = text[position : position + int(piece[1][:6])]
        position += len(word)
        if not word.startswith(_ANONYMOUS):
            (inner if within else outer).append(word)
    if not outer:
        return text
    return "::".join(outer) + (f"<{', '.join(inner)}>" if inner else "")
