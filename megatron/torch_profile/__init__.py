# SPDX-License-Identifier: Apache-2.0
"""Profile any Megatron training run, unmodified.

    python -m megatron.torch_profile pretrain_gpt.py --torch-profile ...

or, from code, before Megatron parses its arguments:

    import megatron.torch_profile
    megatron.torch_profile.install()

Importing this package imports neither torch nor Megatron, and changes nothing.
"""

from __future__ import annotations

from megatron.torch_profile.hooks import cuda_graphs
from megatron.torch_profile.hooks.megatron_names import PATCHES
from megatron.torch_profile.patching import PatchSet

__all__ = ["install", "uninstall"]

_patches = PatchSet(PATCHES)


def install() -> None:
    """Wrap the few Megatron names that profiling needs; again is nothing.

    Megatron and torch may be imported before or after; of torch, only the begin of a CUDA graph's
    capture is wrapped, which is noted. Without `--torch-profile` among the arguments,
    training is what it was.

    Raises:
        SystemExit: Megatron is older than the oldest that can be profiled. If Megatron is imported
            later, its import raises this.
    """
    _patches.apply()
    cuda_graphs.captures.apply()


def uninstall() -> None:
    """Put every name back; again is nothing."""
    _patches.remove()
    cuda_graphs.captures.remove()
