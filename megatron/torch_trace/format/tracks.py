# SPDX-License-Identifier: Apache-2.0
"""What tells a track of a trace."""

from __future__ import annotations

Identity = int | str | None

Track = tuple[Identity, Identity]
"""(pid, tid) as the trace has them: of a GPU row, device and stream."""
