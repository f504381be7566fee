# SPDX-License-Identifier: Apache-2.0
"""Names in files and traces: runs, windows, ranks, categories, steps, times."""
