# SPDX-License-Identifier: Apache-2.0
"""Components that are there by name, mostly of megatron-core; a config gives sizes and arguments.

catalogue   names, sizes, inputs            megatron    what Megatron needs before it can be built
attention, cross_entropy, feed_forward, layers, norms, optimizer_steps, rotary: builders
"""

from __future__ import annotations

from megatron.torch_profile.component.ready.catalogue import NAMES, build, check, surroundings

__all__ = ["NAMES", "build", "check", "surroundings"]
