# SPDX-License-Identifier: Apache-2.0
"""Findings about the recording itself: what must be known before its numbers are believed."""
