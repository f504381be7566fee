# SPDX-License-Identifier: Apache-2.0
"""One rank's activity and what it belongs to: launches, window, classes, steps."""
