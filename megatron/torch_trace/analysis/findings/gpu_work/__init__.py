# SPDX-License-Identifier: Apache-2.0
"""Findings about the GPU's own work: copies, conversions, tiny kernels."""
