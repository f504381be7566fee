# SPDX-License-Identifier: Apache-2.0
"""Traces rewritten: slimmed, merged, split, decompressed, recovered."""
