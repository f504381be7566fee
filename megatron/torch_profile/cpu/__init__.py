# SPDX-License-Identifier: Apache-2.0
"""Megatron without a GPU, over gloo."""
