# SPDX-License-Identifier: Apache-2.0
"""Tracks of a trace: slices that cross, GPU work that overruns, impossible times."""
