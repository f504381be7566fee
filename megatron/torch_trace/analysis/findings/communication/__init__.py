# SPDX-License-Identifier: Apache-2.0
"""Findings about communication: exposed, late ranks, barriers."""
