# SPDX-License-Identifier: Apache-2.0
"""A rank's own time in each part, for a comparison with its peers.

On the GPU a rank's own time is what it did not wait for other ranks. In a run that is bound by
launches this misleads. The thread of the faster rank is a little ahead, so its GPU waits in *each*
collective for the slower one, in time in which it would have waited for its own thread otherwise:

    thread of rank 0   |launch 2 ms|launch 2 ms|launch 2 ms|     1 % slower than that of rank 1
    GPU of rank 0      idle        #idle       #idle       #     own time: all of it
    GPU of rank 1      waiting     #waiting    #waiting    #     own time: almost none

So a part takes a rank as long as its GPU or its thread needs, whichever is longer. The thread can
have waited for the GPU in turn, and so for other ranks. That it did is taken for granted

- as far as the threads of all peers can have waited: then the run is bound by the GPU;
- as far as the thread took longer than those of its peers, or than it does usually;
- once, where its lead was largest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from megatron.torch_profile.monitor.iterations.measured import Measured
from megatron.torch_profile.monitor.iterations.parts import PARTS

Times = dict[str, float]


def own_times(rows: Sequence[Measured], usual: Sequence[Mapping[str, float] | None]) -> list[Times]:
    """Of peers in one iteration, ms by part.

    Args:
        rows: of two ranks or more with the same work.
        usual: for each of them, what its thread takes for a part usually, where that is known.
    """
    found = [{part: getattr(row, part) for part in PARTS} for row in rows]
    hosts = [row.host for row in rows if row.host is not None]
    if len(hosts) < len(rows):
        return found
    for part in PARTS:
        least = min(host.thread[part] for host in hosts)
        by_all = min(host.covered[part] for host in hosts)
        for times, host, known in zip(found, hosts, usual, strict=True):
            thread, covered = host.thread[part], host.covered[part]
            needed = least if known is None else min(least, known[part])
            waited = max(by_all, min(covered, thread - needed))
            if part == host.lead_part:
                waited = max(waited, min(covered, host.lead))
            times[part] = max(times[part], thread - waited)
    return found
