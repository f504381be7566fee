# SPDX-License-Identifier: Apache-2.0
"""The critical path through the graph of kernels, in words, and the slack beside it."""
