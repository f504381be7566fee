# SPDX-License-Identifier: Apache-2.0
"""What a page draws of memory: made small enough for a screen, with nothing that matters lost."""
