# SPDX-License-Identifier: Apache-2.0
"""The names of the parts of a window, in the order in which they are shown everywhere."""

from __future__ import annotations

BREAKDOWN_PARTS = ("compute", "exposed_communication", "exposed_memory", "idle")
"""They add up to the window; fields of `Breakdown`, keys of `breakdown_ns`, names of colours."""
BREAKDOWN_NAMES = {
    "compute": "compute",
    "exposed_communication": "exposed communication",
    "exposed_memory": "exposed copies",
    "idle": "idle",
}
"""What a user reads for each part, everywhere."""
BREAKDOWN_HEADS = {**BREAKDOWN_NAMES, "exposed_communication": "exposed comm"}
"""The same at the head of a column."""
BUSY_PARTS = BREAKDOWN_PARTS[:-1]
"""What a GPU does when it is not idle."""
