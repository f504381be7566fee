#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The same as `torch-trace decompress`, for people who look in tools/.

    python tools/decompress_trace.py rank-0.pt.trace.json.gz

Runs from a checkout; needs only what the base package depends on (`pip install .`).
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from megatron_torch_profile import torch_trace

if __name__ == "__main__":
    sys.argv.insert(1, "decompress")
    torch_trace()
