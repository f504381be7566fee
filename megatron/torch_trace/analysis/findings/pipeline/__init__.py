# SPDX-License-Identifier: Apache-2.0
"""Findings about pipeline stages: bubbles and uneven work."""
