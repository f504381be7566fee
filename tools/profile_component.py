#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The same as `python -m megatron.torch_profile.component`, for people who look in tools/.

    python tools/profile_component.py rms_norm --override sizes.hidden=4096

Runs from a checkout; needs torch, and megatron-core for its ready components.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from megatron_torch_profile import open_namespace

open_namespace()

from megatron.torch_profile.component.__main__ import main  # noqa: E402

if __name__ == "__main__":
    main()
