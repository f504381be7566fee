# SPDX-License-Identifier: Apache-2.0
"""What this process may use of its machine, and what must not outlive it.

    cores       how many processes may work at once
    memory      bytes that may still be taken
    leftovers   processes and unfinished files that go when this process does

Both halves use it: it imports nothing but the standard library.
"""
