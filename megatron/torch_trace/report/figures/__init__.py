# SPDX-License-Identifier: Apache-2.0
"""What a page draws besides tables: numbers of an analysis, placed; nothing is computed anew."""
