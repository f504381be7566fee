# SPDX-License-Identifier: Apache-2.0
"""What a change does to the graph of kernels."""
