# SPDX-License-Identifier: Apache-2.0
"""What still fits: from what one run held, how much another micro-batch or flag would."""
