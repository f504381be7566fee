# SPDX-License-Identifier: Apache-2.0
"""What links of GPUs can carry in one direction, GB/s, as their vendors state it."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """A generation of links between the GPUs of one host.

    Args:
        name: what it is called.
        gbps: GB/s of one GPU in one direction, half of what data sheets add up.
        source: where that stands.
    """

    name: str
    gbps: float
    source: str


_NVLINK = (
    (r"B100|B200|B300", LinkSpeed("NVLink 5", 900.0, "NVIDIA Blackwell data sheet")),
    (r"H100 PCIe", LinkSpeed("NVLink 4 bridge", 300.0, "NVIDIA H100 data sheet")),
    (r"H100|H200|H800|GH200|H20\b", LinkSpeed("NVLink 4", 450.0, "NVIDIA H100 data sheet")),
    (r"A100|A800", LinkSpeed("NVLink 3", 300.0, "NVIDIA A100 data sheet")),
    (r"V100", LinkSpeed("NVLink 2", 150.0, "NVIDIA V100 data sheet")),
    (r"MI300X|MI325X", LinkSpeed("Infinity Fabric", 448.0, "AMD MI300X data sheet")),
)
_REDUCED = (
    (r"H800", LinkSpeed("NVLink 4 (H800)", 200.0, "NVIDIA H800 data sheet")),
    (r"A800", LinkSpeed("NVLink 3 (A800)", 200.0, "NVIDIA A800 data sheet")),
)
NETWORK = LinkSpeed("400 Gb/s network", 50.0, "InfiniBand NDR or 400 GbE, one port")


def link_of(device: str | None) -> LinkSpeed | None:
    """The links of a GPU by its name; None if it is not in the table."""
    for pattern, link in (*_REDUCED, *_NVLINK):
        if device and re.search(pattern, device, re.IGNORECASE):
            return link
    return None
