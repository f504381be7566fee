# SPDX-License-Identifier: Apache-2.0
"""The monitor: how long the parts of every iteration take on every rank, and which rank is slow."""
