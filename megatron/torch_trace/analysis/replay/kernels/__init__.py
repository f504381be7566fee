# SPDX-License-Identifier: Apache-2.0
"""The graph over ranks at the level of kernels, and the longest path through it."""
