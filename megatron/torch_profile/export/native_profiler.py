# SPDX-License-Identifier: Apache-2.0
"""torch's profiler by its C++ functions, which let other threads run Python meanwhile.

Python's own way holds the GIL: for the stop before torch 2.14, for freeing the result in every
version. The functions are exported; the result of the stop is a `unique_ptr`, which is returned
where the caller says, so it is declared as a structure too large for registers.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

_PROFILER = "_ZN5torch8autograd8profiler"
_NAMES = {
    "disable": f"{_PROFILER}15disableProfilerEv",
    "save": f"{_PROFILER}14ProfilerResult4saveERKNSt7__cxx1112basic_string"
    "IcSt11char_traitsIcESaIcEEE",
    "destroy": f"{_PROFILER}14ProfilerResultD1Ev",
    "delete": "_ZdlPv",
}
_RUNNING = "_ZN5torch8profiler4impl17ProfilerStateBase3getEb"
_CHECKS_ITSELF = (2, 14)
"""From this torch on, a stop without a profiler is empty; before, it would end the process."""
_MACHINES = ("x86_64", "aarch64")
"""Where the way in which C++ returns and takes objects is known."""


class _UniquePointer(ctypes.Structure):
    _fields_ = [("pointer", ctypes.c_void_p), ("room", ctypes.c_void_p * 3)]


class _String(ctypes.Structure):
    """`std::string`, which is only read."""

    _fields_ = [
        ("text", ctypes.c_char_p),
        ("length", ctypes.c_size_t),
        ("capacity", ctypes.c_size_t),
        ("room", ctypes.c_size_t),
    ]


class Result:
    """What a stopped profiler has recorded, until it is freed.

    Args:
        functions: torch's, by the keys of `_NAMES`.
        pointer: to torch's `ProfilerResult`.
    """

    def __init__(self, functions: dict[str, Any], pointer: int | None) -> None:
        self._functions = functions
        self._pointer = pointer

    @property
    def recorded(self) -> bool:
        """Whether there is something to save: saving an empty one ends the process."""
        # Its first member is the moment at which the recording began.
        return self._pointer is not None and ctypes.c_uint64.from_address(self._pointer).value > 0

    def save(self, path: str) -> None:
        """Write the raw trace."""
        text = path.encode()
        name = _String(text, len(text), len(text), 0)
        self._functions["save"](self._pointer, ctypes.byref(name))

    def free(self) -> None:
        """Give its memory back: about five times the raw trace."""
        pointer, self._pointer = self._pointer, None
        if pointer is not None:
            self._functions["destroy"](pointer)
            self._functions["delete"](pointer)


class NativeProfiler:
    """torch's functions.

    Args:
        functions: by the keys of `_NAMES`.
    """

    def __init__(self, functions: dict[str, Any]) -> None:
        self._functions = functions

    @property
    def running(self) -> bool:
        """Whether a profiler of all threads runs, as far as is to be known before it is stopped."""
        running = self._functions.get("running")
        return running is None or bool(running(True))

    def stop(self) -> Result:
        """Stop the profiler of all threads, from any thread."""
        return Result(self._functions, self._functions["disable"]().pointer)


@lru_cache(maxsize=1)
def native_profiler() -> NativeProfiler | None:
    """The functions of the torch that is imported; None where they are not to be had."""
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        return None
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).with_name("lib") / "libtorch_cpu.so"))
        functions = {key: _found(library, name) for key, name in _NAMES.items()}
        if tuple(map(int, torch.__version__.split(".")[:2])) < _CHECKS_ITSELF:
            functions["running"] = _found(library, _RUNNING)
            functions["running"].restype = ctypes.c_void_p
            functions["running"].argtypes = [ctypes.c_bool]
    except (OSError, AttributeError, ValueError):  # another build of torch
        return None
    functions["disable"].restype, functions["disable"].argtypes = _UniquePointer, []
    functions["save"].argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    for key in ("destroy", "delete"):
        functions[key].argtypes = [ctypes.c_void_p]
    for key in ("save", "destroy", "delete"):
        functions[key].restype = None
    return NativeProfiler(functions)


def _found(library: ctypes.CDLL, name: str) -> Any:
    # Whoever replaces the allocator (LD_PRELOAD) is found in the process, and comes first.
    everywhere = ctypes.CDLL(None)
    return everywhere[name] if hasattr(everywhere, name) else library[name]
