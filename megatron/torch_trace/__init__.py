# SPDX-License-Identifier: Apache-2.0
"""The read side: read, check, slim, merge and analyse torch.profiler traces. No torch needed."""
