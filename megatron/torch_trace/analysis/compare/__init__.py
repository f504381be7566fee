# SPDX-License-Identifier: Apache-2.0
"""Two analyses side by side."""
