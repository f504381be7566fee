# SPDX-License-Identifier: Apache-2.0
"""Tracks on which Perfetto loses nothing: which event must move where."""
