# SPDX-License-Identifier: Apache-2.0
"""Kernels by name, family, operator and shape; FLOPs and MFU."""
