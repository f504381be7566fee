# SPDX-License-Identifier: Apache-2.0
"""Between the allocator and CUDA: what was asked for, what was given back."""
