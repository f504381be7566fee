# SPDX-License-Identifier: Apache-2.0
"""What a page draws besides tables: numbers of an analysis, and where they stand in a figure."""
