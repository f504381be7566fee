# SPDX-License-Identifier: Apache-2.0
"""Errors that a user sees: one sentence, one exit status, no traceback.

TorchTraceError            1   anything else that failed
├── UsageError             2   a flag, a path or a combination that cannot work
├── DamagedTraceError      3   work was done on what is whole; something was lost
└── StrictError            4   damaged input under --strict; nothing was written
"""

from __future__ import annotations


class TorchTraceError(Exception):
    """Base of every error that is meant for the user; `str(error)` is the sentence to print."""

    exit_status = 1


class UsageError(TorchTraceError):
    """The request itself is wrong: names the flag or file, the value, and what would be right."""

    exit_status = 2


class DamagedTraceError(TorchTraceError):
    """Output was produced from damaged input; the sentence says what was lost."""

    exit_status = 3


class StrictError(TorchTraceError):
    """The input is damaged and `--strict` forbids working on what is whole."""

    exit_status = 4


class ReaderDiedError(TorchTraceError):
    """A process that read for this one has ended by itself, mostly for lack of memory."""
