# SPDX-License-Identifier: Apache-2.0
"""Collectives: dimension, bytes, bandwidth, the same call on other ranks, who is late."""
